"""The small networks of the cases, in PyTorch's shapes (weights [out, in]), and rounds of them on stored batches."""

import functools
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_het.algorithm import Algorithm
from fedjax_het.engine.round.program import Round, make_round
from fedjax_het.types import Array, ClientData, Model, Params, Variables
from tests.golden.cases import Case
from tests.golden.replay import Replay, client_data, fixed_cohort, replay_rounds

HEAD = ("W2", "b2")


def network(
    start: Variables,
    encode: Callable[[Params, Array], Array] = lambda params, inputs: inputs,
    classify: Callable[[Params, Array], Array] = lambda params, features: features,
) -> Model:
    """A network that begins with these variables, and whose collections besides the parameters never change."""

    def encode_all(variables, inputs, context):
        return (encode(variables["params"], inputs), {}), {k: v for k, v in variables.items() if k != "params"}

    return Model(lambda key, inputs: start, encode_all, classify, lambda inputs: {})


def dense(layer: Params, inputs: Array) -> Array:
    return inputs @ layer["weight"].T + layer["bias"]


class Network:
    """Linear, tanh, linear, or linear alone. As a vector, weights come row by row before the bias, the body first."""

    def __init__(self, start: np.ndarray, features: int, hidden: int, classes: int):
        widths = [size for size in (features, hidden, classes) if size]
        names = ["body", "classifier"][-(len(widths) - 1) :]
        self.shapes = dict(zip(names, zip(widths[1:], widths[:-1], strict=True), strict=True))
        self.start = start

    @classmethod
    def from_case(cls, case: Case) -> "Network":
        network = cls(case["w0"], *(case.meta[name] for name in ("features", "hidden", "classes")))
        if "parts" in case:
            sizes = [size for outputs, inputs in network.shapes.values() for size in (outputs * inputs, outputs)]
            assert np.array_equal(case["parts"], np.repeat(np.arange(4), sizes))
        return network

    @functools.partial(jax.jit, static_argnums=0)
    def leaves(self, vector: Array | np.ndarray) -> Params:
        """The parameters of a vector [..., d]."""
        params, rest = {}, jnp.asarray(vector)
        for name, (outputs, inputs) in self.shapes.items():
            weight, bias, rest = jnp.split(rest, [outputs * inputs, outputs * (inputs + 1)], axis=-1)
            params[name] = {"weight": weight.reshape(*weight.shape[:-1], outputs, inputs), "bias": bias}
        return params

    @functools.partial(jax.jit, static_argnums=0)
    def vector(self, params: Params) -> Array:
        """The vector [..., d] of those layers that there are."""
        layers = [params[name] for name in self.shapes if name in params]
        flat = [x for layer in layers for x in (layer["weight"].reshape(*layer["bias"].shape[:-1], -1), layer["bias"])]
        return jnp.concatenate(flat, axis=-1)

    def encode(self, params: Params, inputs: Array) -> Array:
        return jnp.tanh(dense(params["body"], inputs)) if "body" in self.shapes else inputs

    def classify(self, params: Params, features: Array) -> Array:
        return dense(params["classifier"], features)

    def round(self, algorithm: Algorithm, num_clients: int, cohort_size: int) -> Round:
        model = network({"params": self.leaves(self.start)}, self.encode, self.classify)
        return make_round(algorithm, model, num_clients, participation=fixed_cohort(range(cohort_size)))


def batches_as_data(inputs: np.ndarray, labels: np.ndarray, num_clients: int, cohort: Sequence[int]) -> ClientData:
    """Client cohort[s] has the batches inputs[s] [steps, batch, ...], one after the other."""
    num_examples = labels.shape[1] * labels.shape[2]
    all_inputs = np.zeros((num_clients, num_examples, *inputs.shape[3:]))
    all_labels = np.zeros((num_clients, num_examples))
    all_inputs[cohort] = inputs.reshape(len(cohort), num_examples, *inputs.shape[3:])
    all_labels[cohort] = labels.reshape(len(cohort), num_examples)
    counts = [num_examples] * num_clients
    return client_data(all_inputs.reshape(-1, *inputs.shape[3:]), all_labels.reshape(-1), counts)


# ---- the label-skew cases: features tanh(x W1^T + b1) and logits f W2^T + b2, with stored client data ----------------
def nested(weights: dict) -> Variables:
    """The case's weights by name as our variables: W2 and b2 in the head, all others before it."""
    parts = {"body": weights.keys() - set(HEAD), "classifier": weights.keys() & set(HEAD)}
    return {"params": {part: {name: jnp.asarray(weights[name]) for name in names} for part, names in parts.items()}}


def tanh_network(weights: dict) -> Model:
    def encode(params, inputs):
        return jnp.tanh(inputs @ params["body"]["W1"].T + params["body"]["b1"])

    def classify(params, features):
        return features @ params["classifier"]["W2"].T + params["classifier"].get("b2", 0.0)

    return network(nested(weights), encode, classify)


def initial_weights(case: Case) -> dict:
    return {name.removeprefix("in__"): case[name] for name in case.matching("in__*")}


def examples(case: Case) -> tuple[np.ndarray, np.ndarray]:
    """(inputs [clients, examples, ...], labels); those beyond a client's number are padding, and so they are stored."""
    inputs, labels = (case[name].reshape(len(case[name]), -1, *case[name].shape[3:]) for name in ("X", "Y"))
    is_example = np.arange(labels.shape[1]) < np.sum(labels >= 0, axis=1)[:, None]
    if not np.array_equal(labels >= 0, is_example):
        raise ValueError("a batch other than a client's last has padding, which our batches cannot have")
    return inputs, np.maximum(labels, 0)


def replay_federation(case: Case, algorithm: Algorithm, model: Model | None = None) -> Replay:
    """Run the case's rounds with the client data that it stores."""
    inputs, labels = examples(case)
    selected, counts = case["selected"], np.sum(case["Y"] >= 0, axis=(1, 2))
    if "n_samples" in case and not np.array_equal(counts, case["n_samples"]):
        raise ValueError("n_samples are not the numbers of examples, which are our weights")
    model = tanh_network(initial_weights(case)) if model is None else model
    return replay_rounds(algorithm, model, inputs[selected], labels[selected], selected, len(counts), counts)


def compare_federation(case: Case, replay: Replay, head: tuple[str, ...] = HEAD, unused: tuple[str, ...] = ()):
    """Hold the models of participants and server after each round, and the numbers of examples of each class."""
    for name, start in initial_weights(case).items():
        if name in unused:
            continue
        part = "classifier" if name in head else "body"
        yield case.compare(f"client__{name}", np.stack([models["params"][part][name] for models in replay.trained]))
        server = np.stack([start, *(state.server.shared["params"][part][name] for state in replay.states)])
        yield case.compare(f"server__{name}", server)
    if "counts" in case:
        yield case.compare("counts", class_counts(case))


def class_counts(case: Case) -> np.ndarray:
    """[clients, class]"""
    num_classes = case["counts"].shape[1]
    return np.stack([np.bincount(labels[labels >= 0], minlength=num_classes) for labels in case["Y"]])


def training_settings(case: Case) -> dict:
    """The settings of local training in the meta of these cases."""
    settings = case.meta
    read = {name: settings[name] for name in ("momentum", "weight_decay") if name in settings}
    if settings.get("local_epochs") is not None:
        read["epochs"] = settings["local_epochs"]
    return read | {"learning_rate": settings["lr"], "batch_size": case["Y"].shape[-1], "shuffle": False}

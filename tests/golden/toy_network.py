"""The network of the label-skew cases, features tanh(x W1^T + b1) and logits f W2^T + b2, and their rounds."""

import jax.numpy as jnp
import numpy as np

from fedjax_het.algorithm import Algorithm
from fedjax_het.types import Model, Variables
from tests.golden.cases import Case
from tests.golden.replay import Replay, replay_rounds

HEAD = ("W2", "b2")


def nested(weights: dict) -> Variables:
    """The case's weights by name as our variables: W1 and b1 before the head, W2 and b2 in it."""
    body = {name: jnp.asarray(value) for name, value in weights.items() if name not in HEAD}
    head = {name: jnp.asarray(value) for name, value in weights.items() if name in HEAD}
    return {"params": {"body": body, "classifier": head}}


def network(weights: dict) -> Model:
    def encode(variables, inputs, context):
        layer = variables["params"]["body"]
        return (jnp.tanh(inputs @ layer["W1"].T + layer["b1"]), {}), {}

    def classify(params, features):
        return features @ params["classifier"]["W2"].T + params["classifier"].get("b2", 0.0)

    return Model(lambda key, inputs: nested(weights), encode, classify, lambda inputs: {})


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
    model = network(initial_weights(case)) if model is None else model
    return replay_rounds(algorithm, model, inputs[selected], labels[selected], selected, len(counts), counts)


def compare_federation(case: Case, replay: Replay, tolerance: float | None = None):
    """Hold the models of participants and server after each round."""
    for name, start in initial_weights(case).items():
        part = "classifier" if name in HEAD else "body"
        trained = np.stack([models["params"][part][name] for models in replay.trained])
        yield case.compare(f"client__{name}", trained, tolerance)
        server = np.stack([start, *(state.server.shared["params"][part][name] for state in replay.states)])
        yield case.compare(f"server__{name}", server, tolerance)


def class_counts(case: Case, num_classes: int) -> np.ndarray:
    """[clients, class]"""
    return np.stack([np.bincount(labels[labels >= 0], minlength=num_classes) for labels in case["Y"]])


def training_settings(case: Case, learning_rate: bool = True) -> dict:
    """The settings of local training that the meta of these cases tell."""
    settings = case.meta
    if "model" in settings:
        settings.confirm(model=settings["model"])
    read = {name: settings[name] for name in ("momentum", "weight_decay") if name in settings}
    if settings.get("local_epochs") is not None:
        read["epochs"] = settings["local_epochs"]
    if learning_rate:
        read["learning_rate"] = settings["lr"]
    return read | {"batch_size": case["Y"].shape[-1], "shuffle": False}

"""FedSR and FedL2R: training step by step, evaluation, and the averaged leaves."""

import jax
import jax.numpy as jnp
import numpy as np
import optax

from fedjax_het._internal.keys import make_key
from fedjax_het.algorithm import Algorithm
from fedjax_het.algorithms import fedl2r, fedsr
from fedjax_het.client.objectives import conditional_information, cross_entropy, l2_representation
from fedjax_het.models._adaptations import probabilistic
from fedjax_het.problem import ForwardPass, Problem
from fedjax_het.sharing import personal_paths
from fedjax_het.types import Batch, Context, Model, Params
from tests.golden.cases import Case, covers
from tests.golden.metadata import Metadata
from tests.golden.networks import network
from tests.golden.replay import aggregate, torch_optimizer
from tests.views import client_view

# The released names of the parameters, and their paths here; matrices are [out, in] there.
PLACES = {
    "0.l.weight": "hidden/kernel",
    "0.l.bias": "hidden/bias",
    "0.fc.weight": "representation/kernel",
    "0.fc.bias": "representation/bias",
    "1.weight": "classifier/kernel",
    "1.bias": "classifier/bias",
    "r_mu": "reference/mean",
    "r_sigma": "reference/scale",
    "C": "reference/factor",
}


def read_params(case: Case, prefix: str) -> Params:
    params = {}
    for name, place in PLACES.items():
        if f"{prefix}__{name}" in case:
            layer, leaf = place.split("/")
            params.setdefault(layer, {})[leaf] = jnp.asarray(_turned(name, case[f"{prefix}__{name}"]))
    return params


def compare(case: Case, prefix: str, params: Params):
    for name, place in PLACES.items():
        layer, leaf = place.split("/")
        if f"{prefix}__{name}" in case and layer in params:
            yield case.compare(f"{prefix}__{name}", _turned(name, np.asarray(params[layer][leaf])))


def _turned(name: str, values: np.ndarray) -> np.ndarray:
    return values.T if name.endswith("weight") else values


def tanh_network(is_probabilistic: bool) -> Model:
    """tanh(linear), and for FedL2R its representation, a second linear layer; the head is linear."""

    def encode(params, inputs):
        features = jnp.tanh(inputs @ params["hidden"]["kernel"] + params["hidden"]["bias"])
        if not is_probabilistic:
            features = features @ params["representation"]["kernel"] + params["representation"]["bias"]
        return features

    def classify(params, features):
        return features @ params["classifier"]["kernel"] + params["classifier"]["bias"]

    return network({}, encode, classify)


def recipe(settings: Metadata) -> Algorithm:
    if settings["method"] == "FedL2R":
        return fedl2r(l2r=settings["L2R_coeff"])
    settings.confirm(method="FedSR")
    return fedsr(l2r=settings["L2R_coeff"], cmi=settings["CMI_coeff"], preset="released")


VIEW = client_view()
KEY = make_key(0)


def problem(case: Case, noise) -> Problem:
    """The recipe's problem on the released code's network, with the stored noise for its own."""
    settings, algorithm = case.meta, recipe(case.meta)
    is_probabilistic = settings["method"] != "FedL2R"
    adapt = probabilistic(settings["num_samples"], draw=lambda key, shape, dtype: noise)
    model = (adapt if is_probabilistic else algorithm.adapt)(tanh_network(is_probabilistic))
    return Problem(model, algorithm.objective, lambda inputs: inputs)


def figures(settings: Metadata, forward: ForwardPass) -> list:
    """The numbers that the released code prints for a step; 0 for a term that is switched off."""
    weights = {"ce": (1.0, cross_entropy()), "L2R": (settings["L2R_coeff"], l2_representation(1.0))}
    weights["CMI"] = (settings["CMI_coeff"], conditional_information(1.0))
    return [term(forward) if weight else 0.0 for weight, term in map(weights.get, settings["loss_columns"][:3])]


@covers("fedsr", "comm_*")
def communication(case: Case):
    """All clients except the held-out node are averaged; the reference stays on the client."""
    master = case.meta["master"]
    nodes = [read_params(case, f"c{i}") for i in range(len(case.matching("c*__1.weight")))]
    paths = [f"params/{place}" for place in PLACES.values()]
    personal = {path.split("/")[1] for path in personal_paths(fedsr().sharing, paths, {})}
    stack = jax.tree.map(lambda *leaves: jnp.stack(leaves), *nodes)
    shared = {layer: leaves for layer, leaves in stack.items() if layer not in personal}
    counts = [float(i != master) for i in range(len(nodes))]
    update, _ = aggregate(fedsr(preset="released").aggregator, {"params": shared}, counts)
    for i, node in enumerate(nodes):
        yield from compare(case, f"out{i}", node | update["params"])


@covers("fedsr", "*")
def training(case: Case):
    settings, params = case.meta, read_params(case, "init")
    rates = (settings["lr"], settings["weight_decay"])
    optimizer = torch_optimizer(settings["optim"], *rates, momentum=settings.get("momentum"))
    if not settings["CMI_coeff"]:
        params.pop("reference", None)
        for name in ("r_mu", "r_sigma", "C"):
            case.excuse(f"*__{name}", "without the information term there is no reference; theirs stays as it began")

    @jax.jit
    def step(params, state, batch, noise):
        local = problem(case, noise)
        printed = figures(settings, local.forward(params, {}, batch, VIEW, KEY))
        _, gradient = local.value_and_grad(params, {}, batch, VIEW, KEY)
        updates, state = optimizer.update(gradient, state, params)
        return optax.apply_updates(params, updates), state, jnp.stack(printed)

    state, losses, mask = optimizer.init(params), [], jnp.ones(case["Y"].shape[1])
    noise = case["eps"] if "eps" in case else np.zeros(len(case["Y"]))
    for number, (inputs, labels) in enumerate(zip(case["X"], case["Y"], strict=True)):
        params, state, printed = step(params, state, Batch(inputs, labels, mask), noise[number])
        losses.append(printed)
        yield from compare(case, f"step{number + 1}", params)
    # The fourth column, the negative entropy of the batch, is unused there and does not exist here.
    yield case.compare("losses", losses, part=lambda columns: columns[:, : len(losses[0])])
    yield case.compare("eval_out", log_chances(case, params))


def log_chances(case: Case, params: Params) -> jax.Array:
    model = problem(case, case["eval_eps"] if case.matching("eval_eps") else None).model
    inputs = jnp.asarray(case["Xe"])
    context = Context(jnp.ones(len(inputs)), jnp.zeros((), int), KEY, False)

    @jax.jit
    def evaluate(params):
        (features, _), _ = model.encode({"params": params}, inputs, context)
        return model.classify(params, features)

    return evaluate(params)

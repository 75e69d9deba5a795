"""FedRD: the debiased classifier, guided aggregation, and the local training of a whole round."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from fedjax_het._internal.keys import make_key
from fedjax_het.algorithms import fedavg, fedrd
from fedjax_het.client.local_updates import sgd
from fedjax_het.client.objectives import debiased_cross_entropy
from fedjax_het.client.objectives._debiased import DIVERGENCES, head_weight
from fedjax_het.client.optimizers import torch_sgd
from fedjax_het.engine.round import participation
from fedjax_het.engine.round.program import make_round
from fedjax_het.models import from_flax
from fedjax_het.models._layers import Conv
from fedjax_het.models._norms import BatchNorm
from fedjax_het.problem import Problem
from fedjax_het.server.aggregators import mean, sum_of_models
from fedjax_het.server.weightings import parameter_guided
from fedjax_het.server.weightings._parameter_guided import DISTANCES, NEGLIGIBLE, shares
from fedjax_het.types import Array, Rows, ServerView
from tests import views
from tests.golden.cases import Case, covers
from tests.golden.released_rules import guided_weights
from tests.golden.replay import client_data, run_round_with

COUNTERS = "the released code averages integer counters of batches; ours keeps none"


def server_view(start: dict, models: dict, gaps: np.ndarray) -> ServerView:
    """All clients are present, with these models, leaves [clients, ...], trained from that start."""
    changes = {key: jnp.asarray(models[key] - start[key]) for key in start}
    shared = {"params": jax.tree.map(jnp.asarray, start)}
    return views.server_view(len(gaps), {"gap": jnp.asarray(gaps)}, {"params": changes}, shared)


def guided(view: ServerView, layer: str, num_extra: int = 0) -> tuple[Array, Array]:
    """(beta, weights)"""
    start, changes = view.received.shared["params"][layer], view.updates.tensors()["params"][layer]
    distances = DISTANCES["l2"](start.ravel(), changes.reshape(len(changes), -1))
    beta = shares(distances, view.is_present, NEGLIGIBLE)
    return beta, parameter_guided(layer, official_n_extra=num_extra).update((), view)[0]


@covers("fedrd", "ref_weights_*")
def weights_alone(case: Case):
    view = server_view({"conv": case["theta_g"]}, {"conv": case["thetas"]}, case["gaps"])
    beta, weights = guided(view, "conv")
    yield case.compare("beta", beta)
    yield case.compare("weights", weights)


@covers("fedrd", "agg_*")
def released_aggregation(case: Case):
    case.excuse("*num_batches_tracked", COUNTERS)
    layer, gaps = case.meta["indicator"], case["gaps"]
    keys = [name.removeprefix("g__") for name in case.matching("g__*") if not name.endswith("num_batches_tracked")]
    start = {key: case[f"g__{key}"] for key in keys}
    models = {key: np.stack([case[f"d{i}__{key}"] for i in range(len(gaps))]) for key in keys}
    num_extra = case.meta["n_models_in_dict"] - len(gaps)
    case.meta.confirm(held_out_domain_in_model_dict=num_extra > 0)
    if num_extra not in (0, extra := fedrd.presets["released"]["official_n_extra"]):
        raise ValueError(f"the case counts {num_extra} models that do not take part, and the preset {extra}")
    total = float(case["weights"].sum())
    if not np.isclose(stated := case.meta.get("sum_weights", total), total, equal_nan=True):
        raise ValueError(f"meta key 'sum_weights' is {stated}, and 'weights' sum to {total}")
    if not np.isfinite(gaps).all():
        yield from _without_nonfinite(case, layer, start, models, gaps)
        return
    view = server_view(start, models, gaps)
    beta, weights = guided(view, layer)
    yield case.compare("beta", beta)
    yield case.compare("weights_corrected", weights)
    is_sound = total <= 1 + 1e-6  # False for NaN
    num_extra = num_extra if is_sound else 0
    aggregator = (sum_of_models if num_extra else mean)(parameter_guided(layer, official_n_extra=num_extra))
    update = aggregator.update(None, (), view)[0].update["params"]
    if is_sound:
        yield case.compare("weights", guided(view, layer, num_extra)[1])
        for key in keys:
            yield case.compare(f"out__{key}", start[key] + update[key])
        return
    fault, expected = f"released weights sum to {total:.3g}", case["weights_corrected"]
    yield case.contain("weights", weights, expected, fault, "weights_corrected")
    for key in keys:
        mixed = np.einsum("i,i...->...", expected, models[key])
        yield case.contain(f"out__{key}", start[key] + update[key], mixed, fault, "the models by weights_corrected")


def _without_nonfinite(case: Case, layer: str, start: dict, models: dict, gaps: np.ndarray):
    """A gap that is not finite never reaches our server: a whole round leaves its client out."""
    algorithm = replace(fedavg(batch_size=2), aggregator=mean(parameter_guided(layer)))
    state, metrics = run_round_with(algorithm, {"params": start}, {"params": models}, gap=gaps)
    is_finite = np.isfinite(gaps)
    if not np.array_equal(metrics.is_nonfinite, ~is_finite):
        raise ValueError(f"the round dropped {metrics.is_nonfinite}, and gaps are {gaps}")
    rest = guided_weights(start[layer], models[layer][is_finite], gaps[is_finite])
    expected = np.zeros(len(gaps))
    expected[is_finite] = rest
    fault, held_to = f"released from gaps {gaps}", "without the clients whose gaps are not finite, by a transcription"
    for key in start:
        mixed = np.einsum("i,i...->...", expected, models[key])
        yield case.contain(f"out__{key}", state.server.shared["params"][key], mixed, fault, held_to)
    reason = "released from gaps that are not finite; what ours makes of the models is held"
    for name in ("beta", "weights", "weights_corrected"):
        case.excuse(name, reason)


@covers("fedrd", "lambda_*")
def debiased_classifier(case: Case):
    few_shot = tuple(case["few_shot"].tolist())
    start, local = ({"params": {"classifier": {"kernel": case[name].T}}} for name in ("w_global", "w_local"))
    view = views.client_view(start=start, local=local)
    num_classes = case["logits"].shape[1]

    def loss(logits, labels, **options):
        forward = views.forward_pass(logits, labels, params=local["params"], view=view)
        return debiased_cross_entropy(few_shot, **options)(forward)

    logits, labels = jnp.asarray(case["logits"]), jnp.asarray(case["y"])
    value, gradient = jax.jit(jax.value_and_grad(loss))(logits, labels)
    heads = (jnp.asarray(head_weight(model["params"], num_classes)) for model in (local, start))
    yield case.compare("lam", DIVERGENCES["row_l2_mean"](jnp.subtract(*heads)))
    yield case.compare("loss", value)
    yield case.compare("grad_logits", gradient)
    yield case.compare("loss_batch_normalised", loss(logits, labels, normalise="batch"))
    # With a zero head, one example of a class has the loss: its class weight times log C.
    class_loss = jax.jit(jax.vmap(lambda label: loss(jnp.zeros((1, num_classes)), label[None], normalise="batch")))
    yield case.compare("class_weights", class_loss(jnp.arange(num_classes)) / np.log(num_classes))


class Released(nn.Module):
    """The case's network: convolutions, each with batch norm and ReLU, spatial mean, linear head."""

    kernels: dict[str, tuple[int, ...]]  # by their layers' names in their order, [height, width, channel, features]
    num_classes: int

    def setup(self):
        self.classifier = nn.Dense(self.num_classes)

    @nn.compact
    def encode(self, x: Array, mask: Array, is_training: bool) -> Array:
        for layer, (height, width, _, features) in self.kernels.items():
            x = Conv(features, (height, width), use_bias=False, name=layer)(x)
            x = nn.relu(BatchNorm(name=layer.replace("conv", "bn"))(x, mask, is_training))
        return x.mean(axis=(1, 2))

    def classify(self, features: Array) -> Array:
        return self.classifier(features)


PLACES = {
    "weight": ("params", "scale"),
    "bias": ("params", "bias"),
    "running_mean": ("batch_stats", "mean"),
    "running_var": ("batch_stats", "var"),
}


def place(key: str) -> tuple[str, str, str]:
    """(collection, layer, leaf) of the released "layer1.0.conv1.weight"."""
    layer, _, leaf = key.rpartition(".")
    if layer == "fc_class":
        return "params", "classifier", "kernel" if leaf == "weight" else "bias"
    collection, name = PLACES[leaf]
    return collection, layer.replace(".", "_"), "kernel" if "conv" in layer else name


def ours(array: np.ndarray) -> Array:
    """PyTorch's layouts into ours; `theirs` is the way back."""
    return jnp.asarray(np.transpose(array, {4: (2, 3, 1, 0), 2: (1, 0)}.get(array.ndim, range(array.ndim))))


def theirs(array: Array) -> np.ndarray:
    return np.transpose(array, {4: (3, 2, 0, 1), 2: (1, 0)}.get(array.ndim, range(array.ndim)))


@covers("fedrd", "local_*")
def local_training(case: Case):
    """One client, so that the new model is its own; every epoch goes through the batches in order."""
    case.excuse("*num_batches_tracked", COUNTERS)
    keys = [name.removeprefix("init__") for name in case.matching("init__*") if not name.endswith("tracked")]
    variables = {"params": {}, "batch_stats": {}}
    for key in keys:
        collection, layer, leaf = place(key)
        variables[collection].setdefault(layer, {})[leaf] = ours(case[f"init__{key}"])
    images, labels = np.moveaxis(case["X"], 2, -1), case["Y"]
    data = client_data(images.reshape(-1, *images.shape[2:]), labels.ravel(), [labels.size])
    settings = {"learning_rate": case.meta["lr"], "momentum": case.meta["momentum"], "shuffle": False}
    settings |= {"weight_decay": case.meta["weight_decay"], "batch_size": labels.shape[1]}
    few_shot = tuple(case.meta["few_shot"])
    kernels = {layer: variables["params"][layer]["kernel"].shape for _, layer, _ in map(place, keys) if "conv" in layer}
    network = Released(kernels, len(case["init__fc_class.bias"]))
    model = from_flax(network)._replace(init=lambda key, inputs: variables)

    algorithm = fedrd(few_shot, epochs=case.meta["E"], **settings)
    round = make_round(algorithm, model, 1, participation=participation.full())
    key = make_key(0)
    state, _, said = jax.jit(round.step_with_messages)(round.init(key, data), data, key)
    yield case.compare("gap", said.uploads.reports["gap"][0], scale=1e-2)
    for name in keys:
        collection, layer, leaf = place(name)
        yield case.compare(f"out__{name}", theirs(state.server.shared[collection][layer][leaf]))
    problem = Problem(model, algorithm.objective, lambda inputs: inputs)
    yield case.compare("lambdas", lambdas(problem, settings, variables, data, case.meta["E"]))


def lambdas(problem: Problem, settings: dict, variables: dict, data, num_epochs: int) -> np.ndarray:
    """Epoch by epoch, the optimizer going on: how far the head is from the round's start when each begins."""
    optimizer = torch_sgd(settings["learning_rate"], settings["momentum"], settings["weight_decay"])
    update = sgd(**settings, optimizer=optimizer, keep_optimizer=True)
    own = data._replace(**{part: Rows(*(x[0] for x in getattr(data, part))) for part in ("train", "valid", "test")})
    view = views.client_view(variables, memory={"optimizer": optimizer.init(variables["params"])}, data=own)
    train, found = jax.jit(lambda view: update.train(problem, view, make_key(0))), []
    for _ in range(num_epochs):
        change = view.local["params"]["classifier"]["kernel"] - variables["params"]["classifier"]["kernel"]
        found.append(DIVERGENCES["row_l2_mean"](change))
        trained = train(view)
        view = view._replace(local=trained.variables, memory={"optimizer": trained.optimizer})
    return np.array(found)

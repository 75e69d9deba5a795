"""HarmoFL: amplitude normalisation, weight perturbation, drift, Dice, and whole trainings."""

import jax
import jax.numpy as jnp
import numpy as np
import optax

from fedjax_het.algorithm import Algorithm
from fedjax_het.algorithms import harmofl
from fedjax_het.client.gradients import perturbation, sharpness_aware
from fedjax_het.client.objectives import cross_entropy
from fedjax_het.client.objectives.dice import soft_dice
from fedjax_het.client.optimizers import torch_sgd
from fedjax_het.diagnostics.drift import drift
from fedjax_het.engine.participation import everyone
from fedjax_het.engine.problem import LocalProblem
from fedjax_het.engine.round import make_round
from fedjax_het.models.spectrum import normalise, update_average
from fedjax_het.server.aggregators import mean
from fedjax_het.server.weightings import stateless
from fedjax_het.types import Batch, Broadcast, ClientView, Model
from tests.golden.cases import Case, covers
from tests.golden.stage import aggregate, client_data

FLOAT32 = 1e-5


def nhwc(images: np.ndarray) -> np.ndarray:
    return np.moveaxis(images, -3, -1)


def nchw(images) -> np.ndarray:
    return np.moveaxis(np.asarray(images), -1, -3)


@covers("harmofl", "amp_official_*")
def released_amplitude(case: Case):
    """The released transform: the constant component only, the first batch's mean kept for good. Stored in float32."""
    is_fixed = case.meta["fix_amp"]
    average = jnp.asarray(nhwc(case["amp_in"]))
    count = jnp.asarray(1.0 if is_fixed or np.sum(case["amp_in"]) != 0 else 0.0)
    for number in range(int(case["n_batches"])):
        if number and not np.any(case[f"amp{number - 1}"]):
            # The released code takes an average of zero for "not yet begun"; ours counts batches.
            count = jnp.zeros(())
        images = nhwc(case[f"x{number}"])
        if not is_fixed:
            average, count = update_average(average, count, jnp.asarray(images), jnp.ones(len(images)), decay=0.0)
        ours = normalise(jnp.asarray(images), average, band="dc")
        yield case.compare(f"amp{number}", nchw(average), FLOAT32)
        yield case.compare(f"y{number}", nchw(ours), FLOAT32, scale=float(np.abs(images).max()))


@covers("harmofl", "amp_paper_*")
def amplitude(case: Case):
    settings = case.meta
    average, count = jnp.zeros(nhwc(case["x0"]).shape[1:]), jnp.zeros(())
    for number in range(len(case.matching("x[0-9]*"))):
        images = jnp.asarray(nhwc(case[f"x{number}"]))
        if "v" in settings:
            average, count = update_average(
                average, count, images, jnp.ones(len(images)), decay=settings["v"], init=settings["init"]
            )
            yield case.compare(f"abar{number}", nchw(average))
        else:
            average = jnp.asarray(nhwc(case[f"abar{number}"]))
        ours = normalise(images, average, band=settings.get("band", "full"), phase_tolerance=settings.get("phase_tol"))
        yield case.compare(f"y{number}", nchw(ours))
    case.excuse("yabs*", "the modulus instead of the real part folds negative pixels; neither source means it")


@covers("harmofl", "amp_server_*")
def server_amplitude(case: Case):
    stack = {"params": {}, "amplitude": {"average": nhwc(case["abars"])}}
    yield case.compare("out", nchw(aggregate(mean("uniform"), stack)[0]["amplitude"]["average"]))


@covers("harmofl", "comm_*")
def communication(case: Case):
    weights = jnp.asarray(case.meta["client_weights"])
    keys = [name.removeprefix("out__") for name in case.matching("out__*")]
    stack = {"params": {key: np.stack([case[f"c{i}__{key}"] for i in range(len(weights))]) for key in keys}}
    update, _ = aggregate(mean(stateless(lambda view: weights)), stack)
    for key in keys:
        yield case.compare(f"out__{key}", update["params"][key], FLOAT32)


@covers("harmofl", "gamma_*")
def wandering(case: Case):
    paths = [jnp.asarray(case[name]) for name in sorted(case.matching("traj*"), key=lambda name: int(name[4:]))]
    yield case.compare("gamma_after", drift(paths))
    yield case.compare("gamma_before", drift(paths, index="before"))
    yield case.compare("theta", paths[0][0])


@covers("harmofl", "loss_*")
def overlap(case: Case):
    labels = jnp.asarray(case["gt"][:, 0], jnp.int32)
    mask = jnp.ones(len(labels))

    def joint(prediction):
        logits = jnp.moveaxis(prediction, 1, -1)
        entropy = optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()
        dice = soft_dice(logits, labels, mask)
        return (entropy + dice) / 2, (entropy, dice)

    (loss, (entropy, dice)), gradient = jax.value_and_grad(joint, has_aux=True)(jnp.asarray(case["pred"]))
    ours = {"joint": loss, "ce": entropy, "dice_loss": dice, "grad_joint": gradient}
    for name, value in ours.items():
        yield case.compare(name, value)
    case.excuse("dice_coef", "the hard metric comes with segmentation's evaluation")


def tanh_network(case: Case, is_frozen: bool = False) -> tuple[Model, dict]:
    """softmax-CE(W2 tanh(W1 x + b1) + b2) on flat inputs in the case's own order (channel, height, width)."""
    params = {name: jnp.asarray(case[name]) for name in ("W1", "b1", "W2", "b2")}

    def encode(variables, inputs, context):
        weights = variables["params"]
        flat = (jnp.moveaxis(inputs, -1, 1) if inputs.ndim == 4 else inputs).reshape(len(inputs), -1)
        bias = jax.lax.stop_gradient(weights["b1"]) if is_frozen else weights["b1"]
        return (jnp.tanh(flat @ weights["W1"].T + bias), {}), {k: v for k, v in variables.items() if k != "params"}

    def classify(weights, features):
        return features @ weights["W2"].T + weights["b2"]

    return Model(lambda key, inputs: {"params": params}, encode, classify, lambda inputs: {}), params


def flat(params: dict) -> np.ndarray:
    return np.concatenate([np.ravel(params[name]) for name in ("W1", "b1", "W2", "b2")])


@covers("harmofl", "wp_*")
def weight_perturbation(case: Case):
    settings = case.meta
    model, params = tanh_network(case, settings.get("frozen_b1", False))
    problem = LocalProblem(model, (cross_entropy(),), lambda inputs: inputs)
    optimizer = torch_sgd(settings["lr"], settings["momentum"], settings["weight_decay"])
    view = ClientView(Broadcast(jnp.zeros((), int), {}, {}), {}, {}, None, {}, {}, (), {}, jnp.zeros(()))
    rule, state, key = sharpness_aware(settings["alpha"]), optimizer.init(params), jax.random.key(0)
    path, deltas, clean, perturbed = [flat(params)], [], [], []
    for inputs, labels in zip(case["xs"], case["ys"], strict=True):
        batch = Batch(jnp.asarray(inputs), jnp.asarray(labels), jnp.ones(len(labels)))
        (loss, _), direction = rule(problem, params, {}, batch, view, key)
        _, gradient = problem.value_and_grad(params, {}, batch, view, key)
        delta = perturbation(gradient, settings["alpha"])
        nearby = jax.tree.map(jnp.add, params, delta)
        perturbed.append(problem.loss(nearby, {}, batch, view, key)[0])
        updates, state = optimizer.update(direction, state, params)
        params = optax.apply_updates(params, updates)
        path.append(flat(params))
        deltas.append(flat(delta))
        clean.append(loss)
    yield case.compare("traj", np.stack(path))
    yield case.compare("deltas", np.stack(deltas), scale=1e-3)
    yield case.compare("loss_clean", clean)
    yield case.compare("loss_perturbed", perturbed)


@covers("harmofl", "e2e_paper_*")
def training(case: Case):
    hyper = case.meta["hyper"]
    num_clients, _, batch_size = case["X"].shape[:3]
    algorithm = harmofl(
        alpha=hyper["alpha"],
        decay=hyper.get("v", 0.1),
        band=hyper.get("band", "full"),
        learning_rate=hyper["lr"],
        momentum=hyper.get("momentum", 0.0),
        weight_decay=hyper.get("wd", 0.0),
        batch_size=batch_size,
        shuffle=False,
    )
    model, _ = tanh_network(case)
    for number, (state, clients) in enumerate(_rounds(case, algorithm, model)):
        yield case.compare(f"r{number}_theta", flat(state.server.shared["params"]), 1e-8)
        yield case.compare(f"r{number}_amp", nchw(state.server.shared["amplitude"]["average"]))
        ours = np.stack([flat(jax.tree.map(lambda x, i=i: x[i], clients)) for i in range(num_clients)])
        yield case.compare(f"r{number}_client", ours, 1e-8)
    case.excuse("*_gamma", "Gamma is held by the cases gamma_*; a compiled round keeps no trajectory")


def _rounds(case: Case, algorithm: Algorithm, model: Model):
    """(state, what the clients had trained) after each stored round."""
    images = nhwc(case["X"])
    num_clients, num_batches, batch_size = images.shape[:3]
    counts = [num_batches * batch_size] * num_clients
    data = client_data(images.reshape(-1, *images.shape[3:]), case["Y"].reshape(-1), counts)
    round = make_round(algorithm, model, num_clients, participation=everyone())
    state, explain = round.init(jax.random.key(0), data), jax.jit(round.explain)
    num_rounds = len(case.matching("r*_theta")) or len(case.matching("r*_server__fc.bias"))
    for _ in range(num_rounds):
        before = state.server.shared["params"]
        state, _, said = explain(state, data, jax.random.key(0))
        yield state, jax.tree.map(jnp.add, before, said.uploads.update["params"])


@covers("harmofl", "e2e_s*")
def released_training(case: Case):
    settings = case.meta
    adam = optax.chain(optax.add_decayed_weights(settings["weight_decay"]), optax.adam(settings["lr"]))
    algorithm = harmofl(
        alpha=settings["alpha"],
        decay=0.0,
        band="dc",
        learning_rate=settings["lr"],
        momentum=settings["extra"].get("momentum", 0.0),
        weight_decay=settings["weight_decay"],
        optimizer=adam if settings["base"] == "Adam" else None,
        batch_size=settings["B"],
        shuffle=False,
    )
    for number, (state, clients) in enumerate(_rounds(case, algorithm, _small_network(case))):
        shared = state.server.shared
        yield case.compare(f"r{number}_server__amp_norm.running_amp", nchw(shared["amplitude"]["average"]), FLOAT32)
        for key in ("conv.weight", "fc.weight", "fc.bias"):
            yield case.compare(f"r{number}_server__{key}", shared["params"][key], FLOAT32)
            for client in range(settings["N"]):
                yield case.compare(f"r{number}_c{client}__{key}", clients[key][client], FLOAT32)
    case.excuse("*_loss", "the released loss is of the perturbed pass; a round reports the clean one")
    case.excuse("*_c?__amp_norm.running_amp", "of single clients; their mean is held")
    case.excuse("init__amp_norm.running_amp", "zero: not begun")


def _small_network(case: Case) -> Model:
    """conv 3x3 without bias, batch statistics without scale, ReLU, spatial mean, linear; PyTorch's shapes."""
    params = {key: jnp.asarray(case[f"init__{key}"]) for key in ("conv.weight", "fc.weight", "fc.bias")}

    def encode(variables, inputs, context):
        weights, images = variables["params"], jnp.moveaxis(inputs, -1, 1)
        maps = jax.lax.conv(images, weights["conv.weight"], (1, 1), "SAME")
        mean = maps.mean(axis=(0, 2, 3), keepdims=True)
        variance = maps.var(axis=(0, 2, 3), keepdims=True)
        features = jax.nn.relu((maps - mean) / jnp.sqrt(variance + 1e-5)).mean(axis=(2, 3))
        return (features, {}), {k: v for k, v in variables.items() if k != "params"}

    def classify(weights, features):
        return features @ weights["fc.weight"].T + weights["fc.bias"]

    return Model(lambda key, inputs: {"params": params}, encode, classify, lambda inputs: {})

"""HarmoFL: amplitude normalisation, weight perturbation, drift, Dice, and whole trainings."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import optax

from fedjax_het._internal.keys import make_key
from fedjax_het.algorithm import Algorithm, Weighting
from fedjax_het.algorithms import harmofl
from fedjax_het.client.objectives import cross_entropy
from fedjax_het.client.objectives._supervised import soft_dice
from fedjax_het.client.sharpness import perturbation, sharpness_aware
from fedjax_het.diagnostics import drift
from fedjax_het.engine.round import participation
from fedjax_het.engine.round.program import make_round
from fedjax_het.models._amplitude import normalise, update_average
from fedjax_het.problem import Problem
from fedjax_het.server.aggregators import mean
from fedjax_het.server.weightings import stateless
from fedjax_het.types import Batch, Model
from tests.golden.cases import Case, covers
from tests.golden.networks import network
from tests.golden.replay import aggregate, client_data, torch_optimizer
from tests.views import client_view

UPDATE = jax.jit(update_average, static_argnames=("decay", "init"))
NORMALISE = jax.jit(normalise, static_argnames=("band", "phase_tolerance"))


def nhwc(images: np.ndarray) -> np.ndarray:
    return np.moveaxis(images, -3, -1)


def nchw(images) -> np.ndarray:
    return np.moveaxis(np.asarray(images), -1, -3)


@covers("harmofl", "amp_official_*")
def released_amplitude(case: Case):
    """The released transform: the constant component only, the first batch's mean kept for good. Stored in float32."""
    is_fixed = case.meta["fix_amp"]
    decay = int(case.meta["momentum_passed"])  # the released code keeps it in a C integer, so that .1 is 0
    average = jnp.asarray(nhwc(case["amp_in"]))
    count = jnp.asarray(1.0 if is_fixed or np.sum(case["amp_in"]) != 0 else 0.0)
    for number in range(int(case["n_batches"])):
        if number and not np.any(case[f"amp{number - 1}"]):
            # The released code takes an average of zero for "not yet begun"; ours counts batches.
            count = jnp.zeros(())
        images = nhwc(case[f"x{number}"])
        if not is_fixed:
            average, count = UPDATE(average, count, images, jnp.ones(len(images)), decay=decay)
        ours = NORMALISE(images, average, band="dc")
        yield case.compare(f"amp{number}", nchw(average))
        yield case.compare(f"y{number}", nchw(ours), scale=float(np.abs(images).max()))


@covers("harmofl", "amp_paper_*")
def amplitude(case: Case):
    settings = case.meta
    average, count = jnp.zeros(nhwc(case["x0"]).shape[1:]), jnp.zeros(())
    num_batches = len(case.matching("x[0-9]*"))
    for number in range(num_batches):
        images = jnp.asarray(nhwc(case[f"x{number}"]))
        if "v" in settings:
            moving = {"decay": settings["v"], "init": settings["init"]}
            average, count = UPDATE(average, count, images, jnp.ones(len(images)), **moving)
            yield case.compare(f"abar{number}", nchw(average))
        else:
            average = jnp.asarray(nhwc(case[f"abar{number}"]))
        options = {"band": settings.get("band", "full"), "phase_tolerance": settings.get("phase_tol")}
        ours = NORMALISE(images, average, **options)
        yield case.compare(f"y{number}", nchw(ours))
    case.excuse("yabs*", "the modulus instead of the real part folds negative pixels; neither source means it")


@covers("harmofl", "amp_server_*")
def server_amplitude(case: Case):
    stack = {"params": {}, "amplitude": {"average": nhwc(case["abars"])}}
    yield case.compare("out", nchw(aggregate(mean("uniform"), stack)[0]["amplitude"]["average"]))


@covers("harmofl", "comm_*")
def communication(case: Case):
    weights = jnp.asarray(case.meta["client_weights"])
    case.meta.confirm(fix_amp_after=True)  # ours is also fixed after the first round
    keys = [name.removeprefix("out__") for name in case.matching("out__*")]
    stack = {"params": {key: np.stack([case[f"c{i}__{key}"] for i in range(len(weights))]) for key in keys}}
    update, _ = aggregate(mean(stateless(lambda view: weights)), stack)
    for key in keys:
        yield case.compare(f"out__{key}", update["params"][key])


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

    (loss, (entropy, dice)), gradient = jax.jit(jax.value_and_grad(joint, has_aux=True))(jnp.asarray(case["pred"]))
    ours = {"joint": loss, "ce": entropy, "dice_loss": dice, "grad_joint": gradient}
    for name, value in ours.items():
        yield case.compare(name, value)
    case.excuse("dice_coef", "the hard metric comes with segmentation's evaluation")


def tanh_network(case: Case, is_frozen: bool = False) -> tuple[Model, dict]:
    """softmax-CE(W2 tanh(W1 x + b1) + b2) on flat inputs in the case's own order (channel, height, width)."""
    params = {name: jnp.asarray(case[name]) for name in ("W1", "b1", "W2", "b2")}

    def encode(weights, inputs):
        flat = (jnp.moveaxis(inputs, -1, 1) if inputs.ndim == 4 else inputs).reshape(len(inputs), -1)
        bias = jax.lax.stop_gradient(weights["b1"]) if is_frozen else weights["b1"]
        return jnp.tanh(flat @ weights["W1"].T + bias)

    def classify(weights, features):
        return features @ weights["W2"].T + weights["b2"]

    return network({"params": params}, encode, classify), params


def flat(params: dict) -> np.ndarray:
    return np.concatenate([np.ravel(params[name]) for name in ("W1", "b1", "W2", "b2")])


@covers("harmofl", "wp_*")
def weight_perturbation(case: Case):
    settings, is_frozen = case.meta, case.meta.get("frozen_b1", False)
    model, params = tanh_network(case, is_frozen)
    settings.confirm(eps=1e-12)
    problem = Problem(model, (cross_entropy(),), lambda inputs: inputs)
    rates = (settings["lr"], settings["weight_decay"])
    options = {key: settings[key] for key in ("momentum", "betas") if key in settings}
    optimizer = torch_optimizer(settings["base"], *rates, **options | dict(settings.get("extra", {})))
    view = client_view()
    rule, state, key = sharpness_aware(settings["alpha"]), optimizer.init(params), make_key(0)
    path, deltas, clean, perturbed = [flat(params)], [], [], []

    @jax.jit
    def step(params, state, batch):
        (loss, _), direction = rule(problem, params, {}, batch, view, key)
        _, gradient = problem.value_and_grad(params, {}, batch, view, key)
        delta = perturbation(gradient, settings["alpha"])
        nearby = jax.tree.map(jnp.add, params, delta)
        updates, state = optimizer.update(direction, state, params)
        if is_frozen:  # PyTorch's optimizers pass over what has no gradient, decay and all
            updates |= {"b1": jnp.zeros_like(params["b1"])}
        near_loss = problem.loss(nearby, {}, batch, view, key)[0]
        return optax.apply_updates(params, updates), state, delta, loss, near_loss

    for inputs, labels in zip(case["xs"], case["ys"], strict=True):
        batch = Batch(jnp.asarray(inputs), jnp.asarray(labels), jnp.ones(len(labels)))
        params, state, delta, loss, near_loss = step(params, state, batch)
        path.append(flat(params))
        deltas.append(flat(delta))
        clean.append(loss)
        perturbed.append(near_loss)
    yield case.compare("traj", np.stack(path))
    yield case.compare("deltas", np.stack(deltas), scale=1e-3)
    yield case.compare("loss_clean", clean)
    yield case.compare("loss_perturbed", perturbed)


# The transcription's names of the recipe's arguments; it has the same defaults, but no momentum and decay.
REFERENCE_NAMES = {
    "alpha": "alpha",
    "v": "decay",
    "band": "band",
    "init": "amplitude_init",
    "amp_rounds": "amplitude_rounds",
    "eta_g": "server_learning_rate",
    "lr": "learning_rate",
    "momentum": "momentum",
    "wd": "weight_decay",
    "norm": "norm",
    "reset_optimizer": "reset_optimizer",
}


def _options(case: Case) -> dict:
    """The recipe's arguments in the file's meta, at the top or in `hyper`."""
    tables = [case.meta, case.meta.get("hyper", {})]
    options = {REFERENCE_NAMES[key]: table[key] for table in tables for key in REFERENCE_NAMES.keys() & set(table)}
    for shares in (table["p"] for table in tables if "p" in table):
        is_name = shares is None or isinstance(shares, str)
        options["weighting"] = shares or "uniform" if is_name else _by_shares(shares)
    return options


def _by_shares(shares: list[float]) -> Weighting:
    return stateless(lambda view: jnp.asarray(shares))


@covers("harmofl", "e2e_paper_*")
def training(case: Case):
    num_clients, _, batch_size = case["X"].shape[:3]
    options = {"momentum": 0.0, "weight_decay": 0.0} | _options(case)
    algorithm = harmofl(**options, batch_size=batch_size, shuffle=False)
    model, _ = tanh_network(case)
    for number, (state, clients) in enumerate(_rounds(case, algorithm, model)):
        yield case.compare(f"r{number}_theta", flat(state.server.shared["params"]), 1e-8)
        yield case.compare(f"r{number}_amp", nchw(state.server.shared["amplitude"]["average"]))
        params = clients["params"]
        ours = np.stack([flat(jax.tree.map(lambda x, i=i: x[i], params)) for i in range(num_clients)])
        yield case.compare(f"r{number}_client", ours, 1e-8)
    case.excuse("*_gamma", "Gamma is held by the cases gamma_*; a compiled round keeps no trajectory")


def _rounds(case: Case, algorithm: Algorithm, model: Model):
    """(state, trained models of the clients) after each stored round."""
    images = nhwc(case["X"])
    num_clients, num_batches, batch_size = images.shape[:3]
    counts = [num_batches * batch_size] * num_clients
    data = client_data(images.reshape(-1, *images.shape[3:]), case["Y"].reshape(-1), counts)
    round = make_round(algorithm, model, num_clients, participation=participation.full())
    state, explain = round.init(make_key(0), data), jax.jit(round.step_with_messages)
    for _ in range(case.meta["rounds"]):
        before = state.server.shared
        state, _, said = explain(state, data, make_key(0))
        yield state, jax.tree.map(jnp.add, before, said.uploads.update)


@covers("harmofl", "e2e_*")
def released_training(case: Case):
    settings, (num_clients, _, batch_size) = case.meta, case["X"].shape[:3]
    rates = (settings["lr"], settings["weight_decay"])
    optimizer = torch_optimizer(settings["base"], *rates, **settings.get("extra", {}))
    options = {"preset": "released"} | _options(case)
    algorithm = harmofl(**options, optimizer=optimizer, batch_size=batch_size, shuffle=False)
    # The released communication weights amplitudes like models.
    algorithm = replace(algorithm, aggregator=mean(options.get("weighting", "uniform")))
    for number, (state, clients) in enumerate(_rounds(case, algorithm, _small_network(case))):
        shared = state.server.shared
        yield case.compare(f"r{number}_server__amp_norm.running_amp", nchw(shared["amplitude"]["average"]))
        for client in range(num_clients):
            average = nchw(clients["amplitude"]["average"][client])
            yield case.compare(f"r{number}_c{client}__amp_norm.running_amp", average)
        for key in ("conv.weight", "fc.weight", "fc.bias"):
            yield case.compare(f"r{number}_server__{key}", shared["params"][key])
            for client in range(num_clients):
                yield case.compare(f"r{number}_c{client}__{key}", clients["params"][key][client])
    case.excuse("*_loss", "the released loss is of the perturbed pass; a round reports the clean one")
    if np.any(case["init__amp_norm.running_amp"]):
        raise ValueError("init__amp_norm.running_amp is not zero, and ours begins without an average")


def _small_network(case: Case) -> Model:
    """conv 3x3 without bias, batch statistics without scale, ReLU, spatial mean, linear; PyTorch's shapes."""
    params = {key: jnp.asarray(case[f"init__{key}"]) for key in ("conv.weight", "fc.weight", "fc.bias")}

    def encode(weights, inputs):
        images = jnp.moveaxis(inputs, -1, 1)
        maps = jax.lax.conv(images, weights["conv.weight"], (1, 1), "SAME")
        mean = maps.mean(axis=(0, 2, 3), keepdims=True)
        variance = maps.var(axis=(0, 2, 3), keepdims=True)
        return jax.nn.relu((maps - mean) / jnp.sqrt(variance + 1e-5)).mean(axis=(2, 3))

    def classify(weights, features):
        return features @ weights["fc.weight"].T + weights["fc.bias"]

    return network({"params": params}, encode, classify)

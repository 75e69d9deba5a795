"""Training without a server beyond averages: CHOCO, gradient tracking and push-sum."""

from dataclasses import replace
from unittest.mock import patch

import jax
import jax.numpy as jnp
import numpy as np
import optax

from fedjax_het import topologies, uplink
from fedjax_het._internal.keys import make_key
from fedjax_het.algorithm import Stage
from fedjax_het.algorithms import choco, dpsgd, dsgt, sgp
from fedjax_het.topologies import Topology
from tests.golden.cases import Case, covers
from tests.golden.family_mixing import (
    consensus,
    estimates_of,
    logistic_losses,
    models_of,
    replay,
    replay_states,
    stored_topology,
)
from tests.golden.replay import StoredLosses, linear_objective, quadratic_objective

LOSS = "binary logistic: ln(1+exp(-y a.x)) + reg |x|^2 / 2, one example a step"
ONE_STEP = {"batch_size": 1, "shuffle": False, "steps": 1}


def stored_gradients(case: Case, num_rounds: int) -> StoredLosses:
    """Losses of one step per round, from tapes [rounds, clients, d] and hessians."""
    inputs, objective = case["tapes"], linear_objective
    if "hessians" in case:
        hessians = case["hessians"].reshape(*inputs.shape[:2], -1)
        inputs, objective = np.concatenate([inputs, hessians], axis=-1), quadratic_objective
    inputs = inputs[:num_rounds, :, None]
    return StoredLosses(objective, inputs, np.zeros(inputs.shape[:3]), 1, 1)


# ---- CHOCO -----------------------------------------------------------------------------------------------------------
def with_draws(stage: Stage, draws: np.ndarray, delay: int) -> Stage:
    """A stage of the package whose uniform draws are stored, [rounds, clients, d], and used some rounds later."""

    def send(update, view):
        own = jnp.asarray(draws)[jnp.maximum(view.received.round - delay, 0), view.client]
        with patch.object(jax.random, "uniform", lambda key, shape, dtype: own):
            return stage.send(update, view)

    return replace(stage, send=send)


def stages_of(case: Case, delay: int = 0) -> tuple[Stage, ...]:
    """The stages of the uplink that a case names."""
    kind, size = case.meta["quantisation"], case["x0"].shape[-1]
    if kind == "full":
        return ()
    if kind == "top":
        return (uplink.top_k(case.meta["keep"] / size, feedback="estimates"),)
    if kind == "qsgd-biased":
        return (with_draws(uplink.qsgd(case.meta["levels"], feedback="estimates"), case["uniform"], delay),)
    chosen = np.zeros(case["q"].shape)
    np.put_along_axis(chosen, case["kept"], 1.0, axis=-1)
    feedback = {"random-biased": "estimates", "random-unbiased": "none"}[kind]
    return (with_draws(uplink.random_k(case.meta["keep"] / size, feedback=feedback), chosen, delay),)


@covers("choco", "official_choco_*")
def compressed(case: Case):
    """With "mix_first" we compress a round later what their code compresses at the end of a round."""
    meta, rate = case.meta, float(case["lr"][0])
    meta.confirm(method="choco", lr_type="constant")
    meta.confirm(loss=LOSS)
    yield case.compare("lr", np.full(len(case["lr"]), rate))
    yield case.compare("W", topologies.TOPOLOGIES[meta["topology"]]().matrix(len(case["W"])))
    losses, settings = logistic_losses(case), {**ONE_STEP, "learning_rate": rate}
    topology, gamma = stored_topology(case["W"]), meta["consensus_lr"]
    _ = meta.get("keep"), meta.get("levels")
    algorithm = replace(choco(topology, gamma, "mix_first", **settings), uplink=stages_of(case, delay=1))
    states = replay_states(case, algorithm, losses=losses, estimate=case["x0"])
    own, estimates = models_of(states), estimates_of(states)
    yield case.compare("x", own[1:])
    yield case.compare("consensus_distance", consensus(own[1:]), scale=1.0)
    yield case.compare("x_hat", estimates[2:], part=lambda stored: stored[:-1])
    yield case.compare("q", np.diff(estimates[1:], axis=0), part=lambda stored: stored[:-1], scale=1.0)
    for name, start in (("x_paper", np.zeros_like(case["x0"])), ("x_paper_hat_at_start", case["x0"])):
        if name in case:
            algorithm = replace(choco(topology, gamma, **settings), uplink=stages_of(case))
            states = replay_states(case, algorithm, losses=losses, estimate=start)
            yield case.compare(name, models_of(states)[1:])
    if meta["quantisation"] == "full":
        own, _ = replay(case, dpsgd(topology, **settings), losses=losses)
        yield case.compare("x_paper_hat_at_start", own)


@covers("choco", "gossip_*")
def compressed_gossip(case: Case):
    size, every = case["x0"].shape[-1], case.meta["stored_every"]
    inputs = np.zeros((case.meta["steps"], len(case["x0"]), 1, size))
    losses = StoredLosses(linear_objective, inputs, np.zeros(inputs.shape[:3]), 1, 1)
    stage = uplink.top_k(case.meta["keep"] / size, feedback="estimates")
    algorithm = choco(stored_topology(case["W"]), case.meta["consensus_lr"], start="zeros", **ONE_STEP)
    states = replay_states(case, replace(algorithm, uplink=(stage,)), losses=losses)
    own, estimates = models_of(states), estimates_of(states)
    yield case.compare("x", own[1::every])
    yield case.compare("x_hat", estimates[1::every])
    yield case.compare("q", np.diff(estimates, axis=0)[: len(case["q"])], scale=1.0)
    yield case.compare("consensus_distance", consensus(own[1:]), scale=1.0)
    yield case.compare("mean0", own[-1].mean(0), scale=1.0)
    yield case.refute("x_wrong_mix_compressed", own[1::every])


@covers("choco", "official_?cd_*")
def other_methods(case: Case):
    """DCD-PSGD and ECD-PSGD are not offered."""
    case.meta.confirm(topology="ring", quantisation="qsgd-unbiased")
    yield case.compare("W", topologies.ring().matrix(len(case["W"])))
    case.excuse_unread("*", "DCD-PSGD and ECD-PSGD are not offered")
    case.meta.confirm(consensus_lr=None, keep=None, levels=8, regularizer=0.01, lr_type="constant")
    case.meta.confirm(method="dcd-psgd" if "dcd" in case.name else "ecd-psgd", loss=LOSS)


# ---- gradient tracking -----------------------------------------------------------------------------------------------
@covers("dsgt", "tape_*")
def tracked(case: Case):
    num_rounds, rate = case.meta["steps"], case.meta["lr"]
    losses, topology = stored_gradients(case, num_rounds), stored_topology(case["W"])
    settings = {"batch_size": 1, "shuffle": False, "learning_rate": rate}
    is_static = np.ptp(case["W"], axis=0).max() == 0
    for variant in ("dsgt", "diging", "atc"):
        if variant == "atc" and not is_static:
            case.excuse("?_atc", "a round has one graph; here y is mixed by the graph of the round before")
            continue
        states = replay_states(case, dsgt(topology, variant, **settings), losses=losses)
        own = models_of(states)
        yield case.compare(f"x_{variant}", own[1:])
        gradients = np.einsum("rnij,rnj->rni", case["hessians"], own) + case["tapes"]
        correction = np.stack([state.clients.memory["tracking"]["w"] for state in states])
        directions = correction + gradients
        if variant == "atc":
            directions[1:] = case["W"] @ directions[1:]
        yield case.compare(f"y_{variant}", directions)
        if variant == "dsgt":
            yield case.refute("x_wrong_y_starts_at_zero", own[1:])
    own, _ = replay(case, dpsgd(topology, **settings, steps=1), losses=losses)
    yield case.compare("x_dpsgd", own)


@covers("dsgt", "exact_*")
def tracked_exactly(case: Case):
    num_rounds, num_clients = case.meta["steps"], len(case["x0"])
    inputs = np.concatenate([case["t"], case["H"].reshape(num_clients, -1)], axis=-1)
    inputs = np.broadcast_to(inputs[:, None], (num_rounds, num_clients, 1, inputs.shape[-1]))
    losses = StoredLosses(quadratic_objective, inputs, np.zeros(inputs.shape[:3]), 1, 1)
    topology, settings = (
        stored_topology(case["W"]),
        {"batch_size": 1, "shuffle": False, "learning_rate": case.meta["lr"]},
    )
    steps, ends = case["stored_step"], {}
    for variant in ("dsgt", "diging", "atc"):
        states = replay_states(case, dsgt(topology, variant, **settings), losses=losses)
        own = models_of(states)
        correction = np.stack([state.clients.memory["tracking"]["w"] for state in states])
        directions = correction + np.einsum("nij,rnj->rni", case["H"], own) + case["t"]
        if variant == "atc":
            directions[1:] = case["W"] @ directions[1:]
        yield case.compare(f"x_{variant}", own[steps + 1])
        yield case.compare(f"y_{variant}", directions[steps + 1], scale=1.0)
        ends[variant] = own[-1]
        if variant == "dsgt":
            yield case.refute("x_wrong_y_starts_at_zero", own[steps + 1])
    own = models_of(replay_states(case, dpsgd(topology, **settings, steps=1), losses=losses))
    yield case.compare("x_dpsgd", own[steps + 1])
    error = lambda models: np.linalg.norm(models - case["x_star"])  # noqa: E731
    yield case.compare("error_dpsgd", error(own[-1]))
    yield case.compare("error_dsgt", error(ends["dsgt"]), scale=1.0)


# ---- push-sum --------------------------------------------------------------------------------------------------------
@covers("pushsum", "*")
def pushed(case: Case):
    shares, meta = case["P"], case.meta
    num_rounds, size = shares.shape[:2]
    is_edge, ids = jnp.asarray(shares > 0), jnp.arange(size)
    topology = Topology(lambda n, number, key: jnp.where(is_edge[number % num_rounds], ids[None], ids[:, None]))
    pushing = topology._replace(weights="out_degree")
    key = make_key(0)
    yield case.compare("P", np.stack([pushing.connect(size, number, key).matrix() for number in range(num_rounds)]))
    settings = {**ONE_STEP, "learning_rate": meta["lr"], "momentum": meta["momentum"]}
    if meta["nesterov"]:
        settings = {**ONE_STEP, "optimizer": optax.sgd(meta["lr"], meta["momentum"], nesterov=True)}
    losses = stored_gradients(case, num_rounds)
    states = replay_states(case, sgp(topology, **settings), losses=losses)[1:]
    own = models_of(states)
    weight = np.stack([state.clients.memory["weight"] for state in states])
    yield case.compare("z", own)
    yield case.compare("ps_weight", weight)
    yield case.compare("x", own * weight[..., None])
    yield case.compare("x_mean", (own * weight[..., None]).mean(1))
    yield case.compare("z_mean", np.stack([state.server.shared["params"]["w"] for state in states]))
    yield case.compare("consensus_distance", consensus(own), scale=1.0)
    is_doubly = np.allclose(shares.sum(2), 1)
    for name in ("x_wrong_no_weight", "x_wrong_rows", "x_wrong_gradient_scaled"):
        if is_doubly or (name.endswith("scaled") and not meta["lr"]):
            case.excuse(name, "the same where weights stay 1, or without gradients")
        else:
            yield case.refute(name, own)
    if is_doubly and not meta["momentum"]:
        mixed, _ = replay(case, dpsgd(topology._replace(weights="uniform"), **settings), losses=losses)
        yield case.compare("z", mixed)

"""Graphs of clients, and training without a server: D-PSGD, DFedAvgM and DFedSAM."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_het import topologies
from fedjax_het._internal.keys import make_key
from fedjax_het.algorithm import Algorithm, Sent, Stage
from fedjax_het.algorithms import choco, dfedavgm, dfedsam, dpsgd
from fedjax_het.engine.round.participation import Participation
from fedjax_het.engine.round.program import make_round
from fedjax_het.mixing import MixingOrder
from fedjax_het.topologies import Topology
from fedjax_het.types import ClientData, Examples, State
from tests.golden.cases import Case, covers
from tests.golden.replay import StoredLosses, rows, stored_losses, vector_model

ORDERS: dict[str, MixingOrder] = {
    "atc": "adapt_then_combine",
    "cta": "combine_then_adapt",
    "awc": "adapt_while_combine",
}


def stored_topology(matrices: np.ndarray) -> Topology:
    """The graph with the matrix W of each round."""
    stack = jnp.asarray(np.broadcast_to(matrices, (1, *matrices.shape)) if matrices.ndim == 2 else matrices)
    everyone = topologies.complete()
    return everyone._replace(weights=lambda number: stack[number % len(stack)])


def replay(case: Case, algorithm: Algorithm, *arguments, **options) -> tuple[np.ndarray, np.ndarray]:
    """(The clients' models, the server's mean) after each round, see `replay_states`."""
    states = replay_states(case, algorithm, *arguments, **options)[1:]
    own, mean = zip(*((state.clients.personal, state.server.shared) for state in states), strict=True)
    return np.stack([leaves["params"]["w"] for leaves in own]), np.stack([leaves["params"]["w"] for leaves in mean])


def replay_states(
    case: Case,
    algorithm: Algorithm,
    is_present: np.ndarray | None = None,
    losses: StoredLosses | None = None,
    estimate: np.ndarray | None = None,
) -> list[State]:
    """The states before the first round and after each.

    Args:
        case: The case; the clients' models start at x0.
        algorithm: The algorithm.
        is_present: [rounds, clients]; None: all clients.
        losses: None: the case's.
        estimate: The initial memory["estimate"], if there is one.
    """
    objective, inputs, labels, steps, _ = losses or stored_losses(case)
    num_rounds, num_clients = inputs.shape[:2]
    algorithm = replace(algorithm, objective=(objective,))
    is_present = np.ones((num_rounds, num_clients), bool) if is_present is None else is_present
    table, nothing = (jax.tree.map(jnp.asarray, rows([count] * num_clients)) for count in (steps, 0))

    @jax.jit
    def step(state, examples, presence):
        everyone = Participation(lambda n: n, lambda key, n, number: (jnp.arange(n), presence), True)
        round = make_round(algorithm, vector_model(case["x0"][0]), num_clients, participation=everyone)
        return round.step(state, ClientData(examples, table, nothing, nothing), make_key(0))[0]

    def examples(number: int) -> Examples:
        return Examples(*(jnp.asarray(x[number].reshape(-1, *x.shape[3:])) for x in (inputs, labels.astype(np.int32))))

    start = make_round(algorithm, vector_model(case["x0"][0]), num_clients)
    state = start.init(make_key(0), ClientData(examples(0), table, nothing, nothing))
    everyones = {"params": {"w": jnp.asarray(case["x0"])}}
    state = state._replace(
        clients=state.clients._replace(personal=everyones),
        server=state.server._replace(shared=jax.tree.map(lambda leaf: leaf.mean(0), everyones)),
    )
    if estimate is not None:
        memory = state.clients.memory | {"estimate": {"params": {"w": jnp.asarray(estimate)}}}
        state = state._replace(clients=state.clients._replace(memory=memory))
    states = [state]
    for number in range(num_rounds):
        states.append(step(states[-1], examples(number), jnp.asarray(is_present[number])))
    return states


def models_of(states: list[State]) -> np.ndarray:
    return np.stack([state.clients.personal["params"]["w"] for state in states])


def estimates_of(states: list[State]) -> np.ndarray:
    return np.stack([state.clients.memory["estimate"]["params"]["w"] for state in states])


def stored_rounding(uniform: np.ndarray, step: float) -> Stage:
    """Stochastic rounding to multiples of the step, with the draws [rounds, clients, d]."""

    def send(update, view):
        draws = jnp.asarray(uniform)[view.received.round, view.client]
        return Sent(jax.tree.map(lambda leaf: step * jnp.floor(leaf / step + draws), update))

    return Stage(send=send)


def consensus(models: np.ndarray) -> np.ndarray:
    return np.sqrt(np.mean(np.sum((models - models.mean(-2, keepdims=True)) ** 2, -1), -1))


def training_settings(case: Case) -> dict:
    return {"learning_rate": case.meta["lr"], "batch_size": 1, "shuffle": False, "steps": case.meta["local_steps"]}


# ---- graphs ----------------------------------------------------------------------------------------------------------
@covers("mixing", "*")
def graph(case: Case):
    size = case.meta["n"]
    adjacency = case["adjacency"].astype(bool)
    metropolis = np.asarray(topologies.from_matrix(adjacency).matrix(size))
    for name in ("W_metropolis", "W_bluefog", "W_choco"):
        if name in case:
            yield case.compare(name, metropolis)
    uniform = topologies.from_matrix(adjacency, "uniform").matrix(size)
    yield case.compare("W_uniform" if "W_uniform" in case else "x_wrong_W_uniform", uniform)
    yield case.compare("degrees", (metropolis > 0).sum(1) - 1)
    yield case.compare("gap_norm_metropolis", topologies.spectral_gap(metropolis), scale=1.0)
    kind = case.name.rsplit("_", 1)[0]
    if kind == "erdos_renyi":
        is_edge = case["uniform_draws"] < case["p"]
        is_edge[~adjacency.any(1)] = is_edge[:, ~adjacency.any(1)] = False  # a client that was isolated by hand
        named = Topology(lambda n, number, key: topologies._connect(jnp.asarray(is_edge)))
    else:
        named = topologies.TOPOLOGIES[kind]() if kind in topologies.TOPOLOGIES else None
    if named:
        yield case.compare("W_metropolis", named.matrix(size))
    if "x_wrong_W_choco" in case:
        yield case.refute("x_wrong_W_choco", metropolis)
    case.excuse("W_max_degree", "not offered")
    case.excuse("W_lazy_metropolis", "not offered")
    case.excuse("W_one_way", "not offered")
    case.excuse("W_fedml_rows", "of a directed graph made undirected by rows; it does not keep the mean")
    case.excuse("*eigenvalue*", "the gap is the one of the norm, which also holds for matrices that are not normal")
    case.excuse("is_connected", "follows from the gap")


@covers("mixing", "exponential_*")
def exponential_graph(case: Case):
    ours = np.asarray(topologies.exponential().matrix(case.meta["n"]))
    yield case.compare("W", ours)
    yield case.compare("gap_norm", topologies.spectral_gap(ours))
    yield case.compare("gap_closed_form", topologies.spectral_gap(ours))
    yield case.compare("distances", np.sort(np.flatnonzero(ours[:, 0])[1:]))
    case.excuse("*eigenvalue*", "as above")


@covers("mixing", "one_peer_exponential_*")
def one_peer_graph(case: Case):
    size, period = case.meta["n"], case.meta["period"]
    ours = np.stack([topologies.one_peer_exponential().matrix(size, number) for number in range(len(case["W"]))])
    yield case.compare("W", ours)
    yield case.compare("send_to", np.stack([np.argmax(matrix - np.eye(size), axis=0) for matrix in ours]))
    product = np.linalg.multi_dot([np.eye(size), *ours[:period][::-1]])
    yield case.compare("product_one_period", product)
    yield case.compare("distance_to_mean", np.linalg.norm(product - 1 / size, 2), scale=1.0)


@covers("mixing", "matching_*")
def matching(case: Case):
    size = case.meta["n"]
    ours = [
        np.asarray(Topology(lambda n, number, key, order=order: topologies._pair(jnp.asarray(order))).matrix(size))
        for order in case["permutations"]
    ]
    yield case.compare("W", np.stack(ours))
    yield case.compare("product", np.linalg.multi_dot(ours[::-1]))


@covers("mixing", "sgp_peers")
def peers(case: Case):
    """Its n-peer graph with one peer; the dynamic exponential graph also sends backwards."""
    sent = case["npeer1_exp_8"][:3, :, 0]
    ours = np.stack([topologies.one_peer_exponential().matrix(8, number) for number in range(3)])
    yield case.compare("npeer1_exp_8", np.argmax(ours - np.eye(8), axis=1), part=lambda stored: sent[:, :])
    case.excuse_unread("*", "other graphs of that code")


@covers("mixing", "gossip_*")
def gossip(case: Case):
    topology, models, ours = stored_topology(case["W"]), jnp.asarray(case["x0"]), []
    num_clients = len(models)
    for number in range(case.meta["rounds"]):
        models = topology.connect(num_clients, number, make_key(0)).mix(models)
        ours.append(np.asarray(models))
    yield case.compare("x", np.stack(ours))
    yield case.compare("mean0", case["x0"].mean(0))
    yield case.compare("mean_end", ours[-1].mean(0))
    yield case.compare("consensus_distance", consensus(np.stack(ours)), scale=1.0)


# ---- training --------------------------------------------------------------------------------------------------------
@covers("dpsgd", "tape_*")
def decentralized(case: Case):
    for short, order in ORDERS.items():
        own, mean = replay(case, dpsgd(stored_topology(case["W"]), order, **training_settings(case)))
        yield case.compare(f"x_{short}", own)
        yield case.compare(f"consensus_{short}", consensus(own), scale=1.0)
        if short == "atc":
            yield case.compare("x_mean_atc", mean)
    if case.name != "tape_different_starts":
        _, mean = replay(case, dpsgd("complete", **training_settings(case)))
        yield case.compare("x_fedavg", mean)
    case.excuse("x_fedavg", "from one start")
    case.excuse("n_samples", "the reported mean has equal weights")
    case.excuse("x_mean_samples_atc", "the reported mean has equal weights")


@covers("dpsgd", "tape_absent")
def absent(case: Case):
    topology = topologies.from_matrix(case["adjacency"].astype(bool))
    presence = jnp.asarray(case["is_present"], bool)
    links = [topology.connect(len(case["adjacency"]), 0, make_key(0), here) for here in presence]
    yield case.compare("W", np.stack([rows.matrix() for rows in links]))
    own, _ = replay(case, dpsgd(topology, **training_settings(case)), case["is_present"].astype(bool))
    yield case.compare("x_atc", own)
    yield case.refute("x_wrong_zeros", own)


@covers("dpsgd", "dispfl_*")
def combined_first(case: Case):
    case.meta.confirm(cs=case.name.removeprefix("dispfl_"))
    own, mean = replay(case, dpsgd(stored_topology(case["W"]), "combine_then_adapt", **training_settings(case)))
    yield case.compare("x_cta", own)
    yield case.compare("x_mean_cta", mean)


@covers("dpsgd", "official_plain_*")
def logistic_regression(case: Case):
    """ChocoSGD's code: one example a step."""
    meta, rates = case.meta, jnp.asarray(case["lr"])
    meta.confirm(method="plain", quantisation="full", consensus_lr=None, keep=None, levels=None)
    meta.confirm(loss="binary logistic: ln(1+exp(-y a.x)) + reg |x|^2 / 2, one example a step")
    meta.confirm(lr_type="decay" if np.ptp(case["lr"]) else "constant")
    named = topologies.TOPOLOGIES["complete" if meta["topology"] == "centralized" else meta["topology"]]()
    yield case.compare("W", named.matrix(len(case["W"])))
    losses = logistic_losses(case)
    for order, name in zip(ORDERS.values(), ("x", "x_cta", "x_awc"), strict=True):
        training = {"learning_rate": 1.0, "batch_size": 1, "shuffle": False, "steps": 1}
        algorithm = dpsgd(
            stored_topology(case["W"]), order, learning_rate_schedule=lambda number: rates[number], **training
        )
        own, _ = replay(case, algorithm, losses=losses)
        yield case.compare(name, own)
        if name == "x":
            yield case.compare("consensus_distance", consensus(own), scale=1.0)


def logistic_losses(case: Case) -> StoredLosses:
    """The losses of ChocoSGD's code: one example per client and step."""
    signed, decay = (case["A"] * case["y"][:, None])[case["sample"]], case.meta["regularizer"]

    def objective(forward):
        weights = forward.params["w"]
        loss = jnp.logaddexp(0, -forward.batch.inputs[0] @ weights) + decay * weights @ weights / 2
        return forward.batch.mask[0] * loss

    return StoredLosses(objective, signed[:, :, None], np.zeros((*signed.shape[:2], 1)), 1, 1)


@covers("dfedavg", "*")
def averaged(case: Case):
    topology, settings = stored_topology(case["W"]), training_settings(case)
    own, mean = replay(case, dfedavgm(topology, momentum=case.meta["momentum"], **settings))
    yield case.compare("x", own)
    yield case.compare("x_mean", mean)
    yield case.compare("consensus_distance", consensus(own), scale=1.0)
    case.excuse("z", "x is the mixture of it")
    if "x_momentum_kept" in case and case.meta["momentum"]:
        yield case.refute("x_momentum_kept", own)
    step, rate = case.meta["step"], case.meta["consensus_lr"]
    if step is None:
        return
    stage = stored_rounding(case["uniform"], step)
    quantized = replace(choco(topology, rate, momentum=case.meta["momentum"], **settings), uplink=(stage,))
    states = replay_states(case, quantized, estimate=case["x0"])
    own, estimates = models_of(states), estimates_of(states)
    yield case.compare("x_quantised_estimates", own[1:])
    yield case.compare("q_estimates", np.diff(estimates, axis=0), scale=float(np.abs(estimates).max()))
    yield case.compare("consensus_estimates", consensus(own[1:]), scale=1.0)
    yield case.refute("x_wrong_quantised_models", own[1:])
    case.excuse("*_delta", "the form that exchanges quantized changes alone is not offered")


@covers("dfedsam", "*")
def sharpness_aware(case: Case):
    topology, settings, meta = stored_topology(case["W"]), training_settings(case), case.meta
    options = {"momentum": meta["momentum"], "epsilon": meta["eps"], **settings}
    mixings = meta.get("gossip_steps", 1)
    own, mean = replay(case, dfedsam(topology, meta["rho"], mixings, **options))
    yield case.compare("x", own)
    yield case.compare("x_mean", mean)
    yield case.compare("consensus_distance", consensus(own), scale=1.0)
    yield case.compare("x_rho_zero", replay(case, dfedsam(topology, 0.0, mixings, **options))[0])
    if "x_one_gossip" in case:
        yield case.compare("x_one_gossip", replay(case, dfedsam(topology, meta["rho"], 1, **options))[0])
    case.excuse("w_adv", "the points of the second gradients are held by fedsam's cases")

"""Fairness: q-FFL, AFL, TERM, FedMGDA+, PropFair, FedFV."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_het.algorithm import Algorithm
from fedjax_het.algorithms import afl, fedfv, fedmgda, propfair, qffl, term
from fedjax_het.client.proportional import proportional_gradient
from fedjax_het.engine.round import server_step
from fedjax_het.problem import Problem
from fedjax_het.server.aggregators import averaged_model
from fedjax_het.server.aggregators._fairness import common_descent_edit, ordered_edit
from fedjax_het.server.simplex import project_on_simplex
from fedjax_het.server.weightings import released_tilt, tilted
from fedjax_het.types import ClientView, State
from tests.golden.cases import Case, covers
from tests.golden.family_clusters import toy_of_vector
from tests.golden.networks import Network
from tests.golden.replay import aggregate, client_data
from tests.golden.toy_leaves import ONE_BY_ONE, by_samples, run_rounds
from tests.views import server_view


# ---- clients with quadratic losses ----------------------------------------------------------------------------------
def losses_at(case: Case, vectors: np.ndarray, cohorts: np.ndarray) -> np.ndarray:
    """F_i of the cohort at the vector that each round starts from, [rounds, cohort]."""
    distances = vectors[:, None] - case["centres"][cohorts]
    return np.sum(case["h"][cohorts] * distances**2, axis=-1) / 2 + case["offsets"][cohorts]


def replay_quadratic(case: Case, algorithm: Algorithm, tapes: np.ndarray, cohorts: np.ndarray) -> list[State]:
    """The states after each round; a client reports its loss without the tape."""
    toy, curvatures, centres, offsets = toy_of_vector(case["w0"]), case["h"], case["centres"], case["offsets"]

    def loss(problem: Problem, view: ClientView) -> jax.Array:
        own = [jnp.asarray(array)[view.client] for array in (curvatures, centres, offsets)]
        return jnp.sum(own[0] * (toy.vector(view.start["params"]) - own[1]) ** 2) / 2 + own[2]

    algorithm = replace(algorithm, reports={**algorithm.reports, "loss": loss})
    round = toy.round(algorithm, len(curvatures), cohorts.shape[1])
    shifted = tapes - (curvatures * centres)[cohorts][:, :, None]
    data = [toy.data(rows, curvatures, ids) for rows, ids in zip(shifted, cohorts, strict=True)]
    return run_rounds(round, data, cohorts)


def vectors_of(states: list[State]) -> np.ndarray:
    return np.stack([state.server.shared["params"]["body"]["kernel"] for state in states])


def refute_where_apart(case: Case, pattern: str, ours: np.ndarray, right: str):
    """Hold our values against wrong ones, unless those are right in this case."""
    for name in case.matching(pattern):
        if np.allclose(case[name], case[right], rtol=1e-6, atol=1e-9):
            case.excuse(name, "as the right implementation gives it")
        else:
            yield case.refute(name, ours)


@covers("qffl", "*")
def power_of_losses(case: Case):
    meta, cohorts = case.meta, case["selected"]
    is_static = "static" in meta["note"]
    meta.confirm(loss_epsilon=1e-10, method="qffedsgd" if meta["local_steps"] == 1 else "qffedavg")

    def replay(q: float, **options) -> np.ndarray:
        algorithm = qffl(q, meta["learning_rate"], steps=meta["local_steps"], **options, **ONE_BY_ONE)
        return vectors_of(replay_quadratic(case, algorithm, case["tapes"], cohorts))

    ours = replay(meta["q"], bounded=not is_static)
    yield case.compare("w", ours)
    yield case.compare("w_q0", replay(0.0))
    yield case.compare("losses", losses_at(case, np.stack([case["w0"], *ours[:-1]]), cohorts))
    yield from refute_where_apart(case, "x_wrong_*", ours, "w")
    case.excuse("h_terms", "they show in w")
    case.excuse("n_samples", "they enter by sampling only")


@covers("term", "official_*")
def tilts(case: Case):
    meta, cohorts = case.meta, case["selected"]
    training = {"learning_rate": meta["learning_rate"], **ONE_BY_ONE}
    sampled = {"weighting": by_samples(case)}

    def replay(**options) -> np.ndarray:
        return vectors_of(replay_quadratic(case, term(meta["t"], **training, **options), case["tapes"], cohorts))

    for name, options in (("", {}), ("_released", {"preset": "released"}), ("_sample_tilted", sampled)):
        yield case.compare(f"w{name}", replay(**options))
    rules = {
        "": tilted(meta["t"]),
        "_sample_tilted": tilted(meta["t"], "samples"),
        "_released": released_tilt(meta["t"]),
    }
    for name, rule in rules.items():
        losses = losses_at(case, np.stack([case["w0"], *case[f"w{name}"][:-1]]), cohorts)
        if name == "_released":
            yield case.compare("losses", losses)
        state, weights, states = rule.init({}, len(case["h"])), [], []
        for row, ids in zip(losses, cohorts, strict=True):
            view = server_view(len(ids), {"loss": jnp.asarray(row)}, num_examples=case["n_samples"][ids])
            own, state = rule.update(state, view)
            weights.append(own)
            states.append(state)
        scale = cohorts.shape[1] if name == "_released" else 1  # its 1/m is in the mean
        yield case.compare(f"weights{name}", scale * np.stack(weights))
    yield case.compare("estimate_released", np.stack(states))


@covers("afl", "fairflearn_*")
def single_gradients(case: Case):
    meta, tapes = case.meta, case["tapes"]
    cohorts = np.broadcast_to(np.arange(len(case["h"])), tapes.shape[:2])
    algorithm = afl(meta["lambda_rate"], averaged=True, learning_rate=meta["learning_rate"], **ONE_BY_ONE)
    states = replay_quadratic(case, algorithm, tapes[:, :, None], cohorts)
    ours = vectors_of(states)
    yield case.compare("w", ours)
    yield case.compare("lambdas", np.stack([state.server.aggregator.inner.weights for state in states]))
    averaged = [averaged_model(state.server)["params"]["body"]["kernel"] for state in states]
    yield case.compare("averaged", np.stack(averaged))
    yield from refute_where_apart(case, "x_wrong_offbyone", ours, "w")
    case.excuse("*_offbyone", "of the wrong projection")


# ---- softmax regression ---------------------------------------------------------------------------------------------
class Regression:
    """The clients of a case with stored examples, all in every round."""

    def __init__(self, case: Case):
        self.network = Network(case["w0"], case.meta["features"], 0, case.meta["classes"])
        self.counts, self.capacity = case["n_samples"], case["labels"].shape[1]
        is_real = np.arange(self.capacity) < self.counts[:, None]
        self.data = client_data(case["inputs"][is_real], case["labels"][is_real], self.counts)

    def replay(self, algorithm: Algorithm, rounds: int) -> list[State]:
        """The states after each round."""
        num_clients = len(self.counts)
        cohorts = np.broadcast_to(np.arange(num_clients), (rounds, num_clients))
        round = self.network.round(algorithm, num_clients, num_clients)
        return run_rounds(round, [self.data] * rounds, cohorts)

    def vectors(self, states: list[State]) -> np.ndarray:
        return np.stack([self.network.vector(state.server.shared["params"]) for state in states])


def softmax_training(case: Case) -> dict:
    meta = case.meta
    epochs = {"batch_size": meta["batch_size"], "epochs": meta["local_epochs"], "shuffle": False}
    return {"learning_rate": meta["learning_rate"], **epochs}


@covers("afl", "federated_*")
def federated_adversary(case: Case):
    toy, training, rate = Regression(case), softmax_training(case), case.meta["lambda_rate"]
    rounds = len(case["w"])
    yield case.compare("lambda0", toy.counts / toy.counts.sum())
    for suffix, order in (("", "before"), ("_lambda_after", "after")):
        states = toy.replay(afl(rate, order=order, start="samples", **training), rounds)
        yield case.compare(f"w{suffix}", toy.vectors(states))
        yield case.compare(f"lambdas{suffix}", np.stack([state.server.aggregator.weights for state in states]))
        if not suffix:
            yield case.compare("losses", np.stack([state.server.aggregator.losses for state in states]))
            yield from refute_where_apart(case, "x_wrong_offbyone", toy.vectors(states), "w")
    case.excuse("lambdas_offbyone", "of the wrong projection")
    training = {"learning_rate": case.meta["learning_rate"], "batch_size": toy.capacity, "shuffle": False}
    states = toy.replay(afl(rate, averaged=True, **training), rounds)
    yield case.compare("w_single_gradient", toy.vectors(states))
    yield case.compare("lambdas_single_gradient", np.stack([state.server.aggregator.inner.weights for state in states]))
    averaged = [toy.network.vector(averaged_model(state.server)["params"]) for state in states]
    yield case.compare("averaged_single_gradient", np.stack(averaged))


@covers("afl", "project_*")
def projections(case: Case):
    points = jnp.asarray(case["y"])
    ours = jax.vmap(lambda point: project_on_simplex(point, jnp.ones(len(point), bool)))(points)
    yield case.compare("projected", ours)
    yield case.refute("x_wrong_offbyone", ours)
    case.meta.confirm(largest_sum_of_wrong=float(case["x_wrong_offbyone"].sum(axis=1).max()))


@covers("term", "softmax_*")
def tilted_regression(case: Case):
    toy = Regression(case)
    name = next(name for name in ("w", "w_sample_tilted") if name in case)
    states = toy.replay(term(case.meta["t"], weighting="samples", **softmax_training(case)), len(case[name]))
    yield case.compare(name, toy.vectors(states))
    case.excuse_unread("weights*", "they show in w")


@covers("propfair", "official_*")
def proportional_rounds(case: Case):
    meta, toy, training = case.meta, Regression(case), softmax_training(case)
    meta["batches_beyond"]

    def replay(**options) -> np.ndarray:
        algorithm = propfair(meta["base"], meta["epsilon"], **training, **options)
        return toy.vectors(toy.replay(algorithm, len(case["w"])))

    yield case.compare("w", replay() if meta["huber"] else replay(preset="released"))
    yield case.compare("w_continuous", replay())
    yield case.compare("w_client_loss", replay(level="client"))


@covers("propfair", "loss_*")
def proportional_slopes(case: Case):
    meta = case.meta

    def slope(loss: jax.Array, is_continuous: bool) -> jax.Array:
        measured = lambda *arguments: ((loss, {}), {"w": jnp.ones(())})  # noqa: E731
        options = {"is_continuous": is_continuous, "gradient": measured}
        rule = proportional_gradient(meta["base"], meta["epsilon"], **options)
        return rule(None, None, None, None, None, None)[1]["w"]

    for name, is_continuous in (("slope", False), ("slope_huber", True), ("slope_continuous", True)):
        slopes = [slope(jnp.asarray(loss), is_continuous) for loss in case["loss"]]
        yield case.compare(name, np.stack(slopes))
    case.excuse("value*", "only the slope takes part in training")


# ---- one server step ------------------------------------------------------------------------------------------------
@covers("fedmgda", "*")
def common_descents(case: Case):
    meta, updates, counts = case.meta, case["updates"], case["n_samples"]
    directions = updates / np.linalg.norm(updates, axis=1, keepdims=True)
    yield case.compare("gram", directions @ directions.T, scale=1.0)
    meta["gap_to_third_party"]

    def mixture(epsilon: float, centre: np.ndarray) -> np.ndarray:
        edit = common_descent_edit(epsilon)
        coefficients = edit(jnp.asarray(updates @ updates.T), jnp.ones(len(updates), bool), jnp.asarray(centre))[0]
        return np.asarray(coefficients) * np.linalg.norm(updates, axis=1)

    def step(epsilon: float, weighting: str) -> np.ndarray:
        aggregator = fedmgda(epsilon, weighting=weighting).aggregator
        update, _ = aggregate(aggregator, {"params": {"w": updates}}, counts)
        return case["w0"] + meta["server_rate"] * np.asarray(update["params"]["w"])

    equal, shares = np.full(len(updates), 1 / len(updates)), counts / counts.sum()
    cases = [
        ("uniform", "w", meta["epsilon"], equal, "uniform"),
        ("samples", "w_samples", meta["epsilon"], shares, "samples"),
        ("unrestricted", "w_unrestricted", 1.0, equal, "uniform"),
    ]
    for kind, name, epsilon, centre, weighting in cases:
        if meta["unique_weights"]:
            yield case.compare(f"lambda_{kind}", mixture(epsilon, centre), scale=1.0)
        else:
            case.excuse(f"lambda_{kind}", "several mixtures are equally good")
        yield case.compare(name, step(epsilon, weighting))
    ours = step(meta["epsilon"], "uniform")
    if meta["quadprog_refused"]:
        yield case.contain("w_released", ours, case["w"], "quadprog refuses a singular matrix", "the exact solution")
    else:
        yield case.compare("w_released", ours)
    yield from refute_where_apart(case, "x_wrong_not_normalised", ours, "w")


@covers("fedfv", "*")
def ordered_projections(case: Case):
    meta, cohorts, updates = case.meta, case["selected"], case["updates"]
    meta.confirm(first_round_number=1)
    num_clients, size = int(cohorts.max()) + 1, cohorts.shape[1]

    def replay(against_cohort: bool) -> np.ndarray:
        aggregator = fedfv(meta["alpha"], meta["tau"], against_cohort=against_cohort).aggregator
        shared = {"params": {"w": jnp.asarray(case["w0"])}}
        state, steps = aggregator.init(shared, num_clients), []
        for number, (ids, stack, losses) in enumerate(zip(cohorts, updates, case["losses"], strict=True)):
            stack = {"params": {"w": jnp.asarray(stack)}}
            view = server_view(size, {"loss": jnp.asarray(losses)}, stack, shared, round=number)
            view = view._replace(cohort=jnp.asarray(ids), num_clients=num_clients)
            result, state = server_step.aggregate(aggregator, None, state, view)
            steps.append(result.update["params"]["w"])
        return np.stack(steps)

    edit, everyone = ordered_edit(meta["alpha"]), jnp.ones(size, bool)
    projected = np.stack(
        [edit(jnp.asarray(u @ u.T), everyone, jnp.asarray(f)) @ u for u, f in zip(updates, case["losses"], strict=True)]
    )
    yield case.compare("projected", projected)
    yield case.compare("internal", projected.mean(axis=1))
    for suffix, against_cohort in (("", True), ("_external_not_current", False)):
        steps = replay(against_cohort)
        yield case.compare(f"applied{suffix}", steps)
        yield case.compare(f"w{suffix}", case["w0"] + np.cumsum(steps, axis=0))
    case.excuse("kept", "it shows in projected")

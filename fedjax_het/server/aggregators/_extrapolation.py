"""Means with a history: FedDyn's over all clients, FedExP's extrapolation, and the mean of the server's models."""

from typing import Annotated, Literal, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Float, Int

from fedjax_het import tree
from fedjax_het.algorithm import Aggregator, Problem
from fedjax_het.errors import InputError
from fedjax_het.server.weightings import WeightingOrName, resolve_weighting, uniform
from fedjax_het.types import Aggregate, Array, Params, PyTree, ServerState, ServerView, Variables, WeightedSum
from fedjax_het.validation import LARGEST_COUNT, Count, NonNegative, PositiveFraction, Range, validate_arguments

Displaced = Literal["all", "participants"]
StartOfAverage = Annotated[int, Range(-1, LARGEST_COUNT, is_whole=True)]


@validate_arguments
def displaced_mean(over: Displaced = "all") -> Aggregator:
    """The uniform mean of the cohort's updates plus the mean of all accumulated client updates (FedDyn).

        all:            h <- h + 1/N sum_S u_i,   u = 1/|S| sum_S u_i + h
        participants:   u = 1/|S| sum_S (u_i + h_i),   h_i: the sum of client i's updates

    The server's model then minimizes the mean of the clients' losses, however different they are. Collections besides
    the parameters use the plain mean. State of "all": h, from zero, the size of the shared parameters. "participants"
    reads reports["displacement"] (h_i, see client.measures.displacement).

    Args:
        over: "all" clients, which makes h the mean of all h_i, or the "participants" of the round (FedSpeed's paper).
            Both are equal under full participation.

    Raises:
        InputError: The option is unknown.

    References:
        Acar et al., Federated Learning Based on Dynamic Regularization, ICLR 2021. arXiv:2111.04263
    """
    is_total, total = over == "all", WeightedSum(uniform.per_client)

    def init(shared: Variables, num_clients: int) -> PyTree:
        return tree.zeros_like(shared["params"]) if is_total else ()

    def update(problem: Problem, state: PyTree, view: ServerView) -> tuple[Aggregate, PyTree]:
        weights, _ = uniform.update((), view)
        mean = view.updates.weighted_sum(weights, total)
        if is_total:
            share = jnp.sum(view.is_present) / view.num_clients
            state = history = tree.add(state, tree.scale(share, mean["params"]))
        else:
            history = tree.weighted_sum(view.uploads.reports["displacement"], weights)
        return Aggregate(mean | {"params": tree.add(mean["params"], history)}, {}), state

    return Aggregator(init, update, sums=(total,), extrapolation=2.0)


class Extrapolation(NamedTuple):
    """The state of `extrapolated_mean`."""

    previous: Params  # the server's shared parameters before the last round
    rate: Float[Array, ""]  # eta_g of the last round


@validate_arguments
def extrapolated_mean(
    epsilon: NonNegative = 1e-3,
    weighting: WeightingOrName = "samples",
    *,
    epsilon_per_client: bool = False,
    epsilon_decay: PositiveFraction = 1.0,
) -> Aggregator:
    """The mean of the updates, scaled up the more the clients disagree (FedExP).

        u = eta sum_i p_i u_i,   eta = max(1, sum_i p_i |u_i|^2 / (2 (|sum_i p_i u_i|^2 + epsilon)))

    Norms are over the parameters; other collections use the weighted mean itself, since a variance could become
    negative. eta is 1 if the mean and epsilon are both 0.
    Reads: reports["squared_norm"] (see client.measures.squared_norm).

    Args:
        epsilon: Bounds eta if the updates cancel (default 1e-3).
        weighting: The weights p_i, as in `mean`.
        epsilon_per_client: Whether epsilon is multiplied by the number of present clients (released code).
        epsilon_decay: Factor applied to epsilon in each round, including the first; 1 in the paper, .998^2 in the
            released code.

    References:
        Jhunjhunwala, Wang and Joshi, FedExP: Speeding up Federated Averaging via Extrapolation, ICLR 2023.
        arXiv:2301.09604
    """
    weighting = resolve_weighting(weighting)
    total = WeightedSum(weighting.per_client)

    def init(shared: Variables, num_clients: int) -> PyTree:
        start = Extrapolation(tree.scale(1.0, shared["params"]), jnp.ones((), float))
        return weighting.init(shared, num_clients), start

    def update(problem: Problem, state: PyTree, view: ServerView) -> tuple[Aggregate, PyTree]:
        weights, inner = weighting.update(state[0], view)
        mean = view.updates.weighted_sum(weights, total)
        mean_of_squares = jnp.sum(weights * view.uploads.reports["squared_norm"])
        floor = jnp.asarray(epsilon, float) * jnp.asarray(epsilon_decay, float) ** (view.received.round + 1)
        floor = floor * jnp.sum(view.is_present) if epsilon_per_client else floor
        square_of_mean = tree.squared_norm(mean["params"]) + floor
        rate = jnp.where(square_of_mean > 0, mean_of_squares / (2 * tree.positive_or_one(square_of_mean)), 1)
        rate = jnp.maximum(rate, 1)
        kept = Extrapolation(view.received.shared["params"], rate)
        return Aggregate(mean | {"params": tree.scale(rate, mean["params"])}, {}), (inner, kept)

    return Aggregator(init, update, weighting.reads, (total,))


def mean_of_last_two(server: ServerState) -> Variables:
    """The shared variables after `extrapolated_mean`, with the mean of the last two models' parameters.

    FedExP evaluates this mean because its iterates oscillate; after the first round, the model itself.
    """
    old, new = server.aggregator[1].previous, server.shared["params"]
    return server.shared | {"params": tree.where(server.round > 1, tree.scale(0.5, tree.add(old, new)), new)}


# ---- the mean of the server's models --------------------------------------------------------------------------------
class ModelAverage(NamedTuple):
    """The state of `with_model_average`."""

    inner: PyTree  # the state of the aggregator
    mean: Variables
    count: Int[Array, ""]  # models in the mean
    num_due: Int[Array, ""]  # number of models due when the last one was added
    start: Int[Array, ""]
    cycle: Int[Array, ""]


@validate_arguments
def with_model_average(aggregator: Aggregator, start: StartOfAverage, cycle: Count = 10) -> Aggregator:
    """Extend an aggregator by a running mean of the server's models, one every `cycle` rounds (SWA).

        after round r > start with (r - start) mod cycle = 0:   mean <- (n mean + x) / (n + 1),   n <- n + 1

    All shared collections are averaged, including batch statistics. Training continues from x; `averaged_model` is
    evaluated. State: the mean, the size of the shared variables.

    Args:
        aggregator: Any aggregator.
        start: The round, from 0, after which averaging starts; three quarters of all rounds in the paper. -1: with the
            first model.
        cycle: Number of rounds between averaged models.

    References:
        Izmailov et al., Averaging Weights Leads to Wider Optima and Better Generalization, UAI 2018. arXiv:1803.05407
    """

    def init(shared: Variables, num_clients: int) -> ModelAverage:
        zero, settings = jnp.zeros((), jnp.int32), (jnp.asarray(start, jnp.int32), jnp.asarray(cycle, jnp.int32))
        return ModelAverage(aggregator.init(shared, num_clients), tree.zeros_like(shared), zero, zero, *settings)

    def update(problem: Problem, state: ModelAverage, view: ServerView) -> tuple[Aggregate, ModelAverage]:
        aggregate, inner = aggregator.update(problem, state.inner, view)
        return aggregate, _take(state, view.received.shared, view.received.round)._replace(inner=inner)

    return aggregator._replace(init=init, update=update)


def averaged_model(server: ServerState) -> Variables:
    """The mean of `with_model_average`, including the model of the last round; before averaging starts, the model.

    Raises:
        InputError: The aggregator has no model average.
    """
    if not isinstance(server.aggregator, ModelAverage):
        raise InputError("evaluated: averaged_model needs the mean of an aggregator from with_model_average.")
    state = _take(server.aggregator, server.shared, server.round)
    return tree.where(state.count > 0, state.mean, server.shared)


def _take(state: ModelAverage, model: Variables, num_rounds: Array) -> ModelAverage:
    """Add the model after `num_rounds` rounds to the mean, if one has become due since the last addition."""
    num_due = jnp.maximum(num_rounds - 1 - state.start, 0) // state.cycle
    is_due = num_due > state.num_due
    count = state.count + is_due.astype(state.count.dtype)
    share = jnp.where(is_due, 1 / jnp.maximum(jnp.asarray(count, float), 1), 0.0)
    mean = jax.tree.map(lambda old, new: (old + share * (new - old)).astype(old.dtype), state.mean, model)
    return state._replace(mean=mean, count=count, num_due=jnp.maximum(num_due, state.num_due).astype(count.dtype))

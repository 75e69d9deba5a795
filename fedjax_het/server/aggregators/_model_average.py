"""A running mean of the server's models over the last rounds, beside any aggregator, and its evaluation."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Int

from fedjax_het import tree
from fedjax_het.algorithm import Aggregator, Problem
from fedjax_het.errors import InputError
from fedjax_het.types import Aggregate, Array, PyTree, ServerState, ServerView, Variables
from fedjax_het.validation import Count, CountOrZero, validate_arguments


class ModelAverage(NamedTuple):
    """The state of `with_model_average`."""

    inner: PyTree  # the aggregator's own
    mean: Variables
    count: Int[Array, ""]  # models in the mean
    num_due: Int[Array, ""]  # how many had been due when the last one was taken
    start: Int[Array, ""]
    cycle: Int[Array, ""]


@validate_arguments
def with_model_average(aggregator: Aggregator, start: CountOrZero, cycle: Count = 10) -> Aggregator:
    """An aggregator that also keeps the mean of the server's models, one of every `cycle` rounds (SWA).

        after round r > start with (r - start) mod cycle = 0:   mean <- (n mean + x) / (n + 1),   n <- n + 1

    All shared collections are averaged alike, batch statistics too. Training goes on from x; `averaged_model` is what
    is tested. State: the mean, the size of the shared variables.

    Args:
        aggregator: Any aggregator.
        start: The round, from 0, after which models are taken; the paper's is three quarters of all rounds.
        cycle: Rounds between two models.

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
    """The mean that `with_model_average` keeps, the model of the last round included; before the first, the model.

    Raises:
        InputError: The aggregator keeps no mean.
    """
    if not isinstance(server.aggregator, ModelAverage):
        raise InputError("evaluated: averaged_model needs the mean of an aggregator from with_model_average.")
    state = _take(server.aggregator, server.shared, server.round)
    return tree.where(state.count > 0, state.mean, server.shared)


def _take(state: ModelAverage, model: Variables, num_rounds: Array) -> ModelAverage:
    """Take the model after so many rounds into the mean, if one has become due since the last."""
    num_due = jnp.maximum(num_rounds - 1 - state.start, 0) // state.cycle
    is_due = num_due > state.num_due
    count = state.count + is_due.astype(state.count.dtype)
    share = jnp.where(is_due, 1 / jnp.maximum(jnp.asarray(count, float), 1), 0.0)
    mean = jax.tree.map(lambda old, new: (old + share * (new - old)).astype(old.dtype), state.mean, model)
    return state._replace(mean=mean, count=count, num_due=jnp.maximum(num_due, state.num_due).astype(count.dtype))

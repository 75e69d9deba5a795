"""A running mean of the server's models over the last rounds, on top of any aggregator, and its evaluation."""

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

    inner: PyTree  # the state of the aggregator
    mean: Variables
    count: Int[Array, ""]  # models in the mean
    num_due: Int[Array, ""]  # number of models due when the last one was added
    start: Int[Array, ""]
    cycle: Int[Array, ""]


@validate_arguments
def with_model_average(aggregator: Aggregator, start: CountOrZero, cycle: Count = 10) -> Aggregator:
    """Extend an aggregator by a running mean of the server's models, one every `cycle` rounds (SWA).

        after round r > start with (r - start) mod cycle = 0:   mean <- (n mean + x) / (n + 1),   n <- n + 1

    All shared collections are averaged, including batch statistics. Training continues from x; `averaged_model` is
    evaluated. State: the mean, the size of the shared variables.

    Args:
        aggregator: Any aggregator.
        start: The round, from 0, after which averaging starts; three quarters of all rounds in the paper.
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

"""Weights adapted to generalization gaps (FedGA)."""

from collections.abc import Callable
from typing import Literal, NamedTuple

import jax.numpy as jnp
from jaxtyping import Bool, Float

from fedjax_het.algorithm import Weighting
from fedjax_het.server.weightings._shares import normalise
from fedjax_het.types import Array, ServerView, Variables
from fedjax_het.validation import Count, NonNegative, Positive, validate_arguments

StepSchedule = Literal["linear", "released", "constant"]
SCHEDULES: dict[StepSchedule, Callable[[Array, int], Array]] = {
    "linear": lambda number, rounds: 1 - number / rounds,
    "released": lambda number, rounds: 1 - (number - 1) / rounds,
    "constant": lambda number, rounds: jnp.ones(()),
}


class Adjustment(NamedTuple):
    weights: Float[Array, "clients"]  # a_i of clients that have reported; 1/N for all others
    has_reported: Bool[Array, "clients"]  # a client's gap is meaningful from its second report on


@validate_arguments
def generalization_adjustment(
    step: NonNegative = 0.2,
    rounds: Count = 40,
    *,
    centre: bool = True,
    schedule: StepSchedule = "linear",
    scale: NonNegative | Literal["1/n"] = 1.0,
    ceiling: Positive | None = None,
) -> Weighting:
    """Increase the weights of clients for which the aggregated model is worse than their own.

        a_i <- max(0, a_i + scale d_r (G_i - mean G) / max_j |G_j - mean G|),   a <- a / sum a

    Shapes: [cohort] from a [clients], initially 1/N, where N is the number of clients with training examples. Gaps that
    are equal up to rounding change nothing.
    Reads: reports["gap"] [cohort], G_i of the previous round (`measures.generalization_gap`): the paper's adjustment
    after round r is made in round r + 1, before its average, with the same numbers. Partial participation: clients
    that take part now and did before are adjusted and keep their total weight; all other clients keep their weights.
    The average uses a over the present clients, or equal weights if their sum is 0.

    Args:
        step: The authors' d (default .2).
        rounds: R, the number of rounds of the run (default 40); d_r is 0 after R rounds.
        centre: Whether mean G is subtracted; False in the released code.
        schedule: d_r = d (1 - r/R) "linear", d (1 - (r - 1)/R) "released", d "constant".
        scale: A factor, or "1/n" over all clients; released: 1/3.
        ceiling: Upper bound on the weights before normalization; released: 1, paper: none.

    Raises:
        InputError: An option is unknown or a number is out of range.

    References:
        Zhang et al., Federated Domain Generalization with Generalization Adjustment, CVPR 2023; official code
        MediaBrain-SJTU/FedDG-GA, utils/weight_adjust.py.
    """

    def init(shared: Variables, num_clients: int) -> Adjustment:
        return Adjustment(jnp.zeros(num_clients, float), jnp.zeros(num_clients, bool))

    def update(state: Adjustment, view: ServerView) -> tuple[Array, Adjustment]:
        factor = 1 / view.num_clients if isinstance(scale, str) else scale
        passed = jnp.maximum(view.received.round - 1, 0)
        size = factor * step * jnp.maximum(SCHEDULES[schedule](passed, rounds), 0)
        has_reported = state.has_reported[view.cohort]
        own = jnp.where(has_reported, state.weights[view.cohort], 1 / view.num_clients)
        own = adjust_weights(
            own, view.uploads.reports["gap"], view.is_present & has_reported, size, centre=centre, ceiling=ceiling
        )
        now_reported = has_reported | view.is_present
        kept = Adjustment(
            state.weights.at[view.cohort].set(jnp.where(now_reported, own, 0)),
            state.has_reported.at[view.cohort].set(now_reported),
        )
        held = jnp.sum(jnp.where(view.is_present, own, 0))
        return normalise(jnp.where(held > 0, own, 1.0), view.is_present), kept

    return Weighting(init, update)


def adjust_weights(
    weights: Array,
    gaps: Array,
    is_adjusted: Array,
    size: Array | float,
    *,
    centre: bool = True,
    ceiling: float | None = None,
) -> Array:
    """[cohort]: weights after one step; adjusted clients keep their total weight, in equal parts if all are cut to 0.

    Args:
        weights: [cohort] a_i before the step.
        gaps: [cohort] G_i.
        is_adjusted: [cohort], clients whose weight may change.
        size: The size of the largest step.
        centre: See `generalization_adjustment`.
        ceiling: See `generalization_adjustment`.
    """
    num = jnp.maximum(jnp.sum(is_adjusted), 1)
    gaps = jnp.where(is_adjusted, gaps, 0).astype(weights.dtype)
    deviations = jnp.where(is_adjusted, gaps - jnp.sum(gaps) / num, 0) if centre else gaps
    largest = jnp.max(jnp.abs(deviations))
    rounding = 4 * num * jnp.finfo(gaps.dtype).eps * jnp.max(jnp.abs(gaps))
    is_something = largest > (rounding if centre else 0)
    steps = size * deviations / jnp.where(is_something, largest, 1)
    cut = jnp.clip(weights + steps, 0, ceiling)
    held = jnp.sum(jnp.where(is_adjusted, weights, 0))
    shared_out = held * normalise(jnp.where(jnp.any(is_adjusted & (cut > 0)), cut, 1.0), is_adjusted)
    return jnp.where(is_adjusted & is_something, shared_out, weights)

"""Robust rules that move a center towards the updates: geometric median and centered clipping."""

from typing import Literal, Unpack

import jax
import jax.numpy as jnp

from fedjax_het import geometry, tree
from fedjax_het.algorithm import Aggregator, Problem
from fedjax_het.errors import InputError
from fedjax_het.server.aggregators._robust_steps import (
    Preparation,
    Radius,
    clip_factors,
    count,
    median_of_members,
    prepare,
)
from fedjax_het.server.weightings import WeightingOrName, resolve_weighting
from fedjax_het.types import Aggregate, Array, PyTree, ServerView, Variables
from fedjax_het.validation import Count, CountOrZero, NonNegative, Positive, validate_arguments

_SMALLEST_DISTANCE = 1e-30  # divisor if all updates are zero


def distances_from(gram: Array, coefficients: Array) -> Array:
    """[rows]: |u_i - z| of z = sum_j c_j u_j, to full relative precision even if z is close to u_i."""
    differences = jnp.eye(len(gram)) - coefficients
    return jnp.sqrt(jnp.maximum(jnp.sum(differences @ gram * differences, axis=1), 0))


def geometric_median_coefficients(
    gram: Array, weights: Array, start: Array, smallest: Array | float, num_steps: int, tolerance: float
) -> Array:
    """[rows]: Weiszfeld's steps, see `geometric_median`; weights: [rows], which sum to one over the members."""

    def step(running: tuple[Array, Array, Array, Array]) -> tuple[Array, Array, Array, Array]:
        number, coefficients, objective, _ = running
        pulls = weights / jnp.maximum(distances_from(gram, coefficients), jnp.maximum(smallest, _SMALLEST_DISTANCE))
        coefficients = pulls / jnp.maximum(jnp.sum(pulls), 1e-300)
        reached = jnp.sum(weights * distances_from(gram, coefficients))
        return number + 1, coefficients, reached, jnp.abs(objective - reached) < tolerance * reached

    first = jnp.sum(weights * distances_from(gram, start))
    running = jnp.zeros((), int), start, first, jnp.array(False)
    return jax.lax.while_loop(lambda running: (running[0] < num_steps) & ~running[3], step, running)[1]


@validate_arguments
def geometric_median(
    num_attackers: CountOrZero = 0,
    *,
    num_steps: Count = 32,
    smoothing: Positive | None = None,
    start: Literal["zero", "mean"] = "zero",
    tolerance: NonNegative = 0.0,
    weighting: WeightingOrName = "uniform",
    **preparation: Unpack[Preparation],
) -> Aggregator:
    """The point with the smallest sum of distances to all updates, by smoothed Weiszfeld steps.

        z <- sum_i b_i u_i / sum_i b_i,   b_i = p_i / max(nu, |u_i - z|)

    Assumes that attackers have less than half of the weight.
    Starting from the mean, a malicious update of size s shifts z by s / m^k after k steps and masks the progress of the
    objective, so the default starts from zero, the model that clients received. The limit does not depend on the start.
    With a fixed nu, the result is the mean once all updates are shorter than nu.

    Released code: RFA start="mean", smoothing=1e-5, num_steps=4, tolerance=1e-6, weighting="samples"; ByzFL
    smoothing=.1, num_steps=3; byzantine-robust-noniid-optimizer smoothing=.1, num_steps=8, 9 % from the limit.

    Args:
        num_attackers: f; only used by the steps "nnm" and "arc".
        num_steps: The maximum number of steps.
        smoothing: nu (default None, 1e-6 of the median norm of the updates).
        start: "zero" or "mean".
        tolerance: Stop if a step changes the objective by less than this fraction. 0: never stop early.
        weighting: The weights p_i. Attackers can falsify reported weights such as "samples".
        preparation: See `Preparation`.

    Raises:
        InputError: An option is unknown, or a weighting is combined with bucketing.

    References:
        Pillutla, Kakade and Harchaoui, Robust Aggregation for Federated Learning, IEEE TSP 2022; code krishnap25/RFA.
    """
    weighting = resolve_weighting(weighting)
    steps = prepare("geometric_median", num_attackers, preparation)
    is_uniform = weighting is resolve_weighting("uniform")
    if not is_uniform and "bucketing" in preparation.get("before", ()):
        raise InputError("weighting: buckets are not weighted. Remove weighting, or 'bucketing' from before.")

    def update(problem: Problem, state: PyTree, view: ServerView) -> tuple[Aggregate, PyTree]:
        steps.check(view)
        updates = view.updates.select(steps.is_treated)
        weights, state = weighting.update(state, view)
        gram, is_member, made = steps.members(updates, view)
        if is_uniform:
            weights = is_member / jnp.maximum(count(is_member), 1)
        smallest = 1e-6 * median_of_members(geometry.lengths(gram), is_member) if smoothing is None else smoothing
        begun = weights if start == "mean" else jnp.zeros_like(weights)
        found = geometric_median_coefficients(
            gram, weights.astype(float), begun.astype(float), smallest, num_steps, tolerance
        )
        return steps.decide(updates.combine(found @ made), view, steps.has_majority(is_member)), state

    return Aggregator(weighting.init, update, "gram")


def clip_around(gram: Array, is_member: Array, radius: Radius, num_steps: int) -> Array:
    """The coefficients of centered clipping, [1 + rows]: row 0 of the Gram matrix is the center, not a member."""
    num_members = jnp.maximum(count(is_member), 1)
    coefficients = (jnp.arange(len(gram)) == 0).astype(float)
    for _ in range(num_steps):
        factors = clip_factors(distances_from(gram, coefficients), is_member, radius) * is_member / num_members
        coefficients = coefficients * (1 - jnp.sum(factors)) + factors
    return coefficients


@validate_arguments
def centred_clipping(
    radius: Radius = "median",
    num_steps: Count = 1,
    *,
    num_attackers: CountOrZero = 0,
    **preparation: Unpack[Preparation],
) -> Aggregator:
    """Move from the previous result towards each update by a bounded step.

        v <- v + 1/m sum_i min(1, tau / |u_i - v|) (u_i - v),   L times;   v: the previous result, initially 0

    Assumes that less than half attack; f clients shift the result by at most 2 L tau f / m.

    Args:
        radius: tau: a number, or "median", the median of |u_i - v|, which adapts to the scale of the updates. The
            paper, whose clients send momentum, uses 10 / (1 - momentum).
        num_steps: L (default 1, as in the paper; 3 in the authors' experiments).
        num_attackers: f; only used by the steps "nnm" and "arc".
        preparation: See `Preparation`.

    Returns:
        An aggregator with state v, a tree like the shared variables.

    References:
        Karimireddy, He and Jaggi, Learning from History for Byzantine Robust Optimization, ICML 2021.
    """
    steps = prepare("centred_clipping", num_attackers, preparation)

    def update(problem: Problem, centre: Variables, view: ServerView) -> tuple[Aggregate, Variables]:
        steps.check(view)
        updates = view.updates.select(steps.is_treated)
        gram, is_member, made = steps.members(updates, view)
        products = made @ updates.products(centre)
        squared = tree.squared_norm(jax.tree.map(lambda leaf: leaf.astype(float), centre))
        joined = jnp.block([[squared[None, None], products[None, :]], [products[:, None], gram]])
        coefficients = clip_around(joined, jnp.append(False, is_member), radius, num_steps)
        moved = tree.add(tree.scale(coefficients[0], centre), updates.combine(coefficients[1:] @ made))
        is_usable = steps.has_majority(is_member)
        return steps.decide(moved, view, is_usable), tree.where(is_usable, moved, centre)

    def init(shared: Variables, num_clients: int) -> Variables:
        return tree.zeros_like(tree.partition(shared, steps.is_treated)[1])

    return Aggregator(init, update, "gram")

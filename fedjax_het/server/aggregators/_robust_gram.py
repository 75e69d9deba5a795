"""Robust rules that are combinations of the updates, with coefficients found from their Gram matrix.

Krum, Multi-Krum, the subset of minimum diameter, the geometric median, and the mean of bounded norms. m is the number
of clients that are present, f = num_attackers, D_ij = |u_i - u_j|^2. All are unweighted but for the geometric median.
"""

import math
from collections.abc import Callable
from typing import Literal, Unpack

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_het import geometry
from fedjax_het.algorithm import Aggregator, Problem
from fedjax_het.errors import InputError
from fedjax_het.server.aggregators._robust_steps import (
    Preparation,
    Radius,
    clip_factors,
    count,
    median_of_members,
    prepare,
    ranks,
    squared_distances,
)
from fedjax_het.server.weightings import WeightingOrName, resolve_weighting
from fedjax_het.types import Aggregate, Array, PyTree, ServerView
from fedjax_het.validation import Count, CountOrZero, NonNegative, Positive, validate_arguments

Neighbours = Literal["paper", "byzfl"]
MOST_SUBSETS = 100_000
_BLOCK = 1 << 21  # entries of the distance matrices of subsets that are compared at a time
_SMALLEST_DISTANCE = 1e-30  # a divisor where all updates are zero


def gram_rule(
    name: str,
    weigh: Callable[[Array, Array], Array],
    num_attackers: int,
    preparation: Preparation,
    least: Callable[[int], int] = lambda num_attackers: 1,
) -> Aggregator:
    """A rule that is a combination of the updates, or of what the steps before it make of them.

    Args:
        name: The name of the rule, for messages.
        weigh: (Gram matrix, is_member) -> the coefficients [rows].
        num_attackers: f.
        preparation: The steps before it, and other shared options.
        least: f -> the fewest rows that the rule needs; with fewer the model stays as it is.
    """
    steps = prepare(name, num_attackers, preparation)

    def update(problem: Problem, state: PyTree, view: ServerView) -> tuple[Aggregate, PyTree]:
        steps.check(view, fewest := least(num_attackers))
        updates = view.updates.select(steps.is_treated)
        members = steps.members(updates, view)
        is_usable = steps.has_majority(members.is_member) & (count(members.is_member) >= fewest)
        weights = jnp.where(is_usable, weigh(members.gram, members.is_member), 0)
        return steps.decide(updates.combine(weights @ members.coefficients), view, is_usable), state

    return Aggregator(lambda shared, num_clients: (), update)


# ---- Krum ------------------------------------------------------------------------------------------------------------
def krum_scores(gram: Array, is_member: Array, num_attackers: int, neighbours: Neighbours) -> Array:
    """[rows]: sum_j D_ij over the nearest others, m - f - 2 ("paper") or m - f - 1 ("byzfl"); inf for the absent."""
    num_near = count(is_member) - num_attackers - (2 if neighbours == "paper" else 1)
    is_other = is_member & ~jnp.eye(len(gram), dtype=bool)
    ordered = jnp.sort(jnp.where(is_other, squared_distances(gram), jnp.inf), axis=1)
    scores = jnp.sum(jnp.where(jnp.arange(len(gram)) < num_near, ordered, 0), axis=1)
    return jnp.where(is_member, scores, jnp.inf)


def _least_for_krum(neighbours: Neighbours) -> Callable[[int], int]:
    return lambda num_attackers: num_attackers + (3 if neighbours == "paper" else 1)


@validate_arguments
def krum(
    num_attackers: CountOrZero = 1, *, neighbours: Neighbours = "paper", **preparation: Unpack[Preparation]
) -> Aggregator:
    """The one update whose nearest others are closest to it.

        u = u_k,   k = argmin_i sum_{j in the m - f - 2 nearest others of i} |u_i - u_j|^2

    The lowest place in the cohort where scores are equal. Assumes 2 f + 2 < m, and that honest updates resemble each
    other: on heterogeneous data the server learns from one client a round, even without any attacker.

    Args:
        num_attackers: f, how many of the clients of a round may lie.
        neighbours: "paper" | "byzfl", m - f - 1 of them, which allows 2 f < m.
        preparation: See `Preparation`.

    Raises:
        InputError: When traced, for cohorts with 2 f >= m, or m < f + 3. In a round in which too few are present the
            model stays as it is.

    References:
        Blanchard et al., Machine Learning with Adversaries: Byzantine Tolerant Gradient Descent, NeurIPS 2017.
    """

    def weigh(gram: Array, is_member: Array) -> Array:
        scores = krum_scores(gram, is_member, num_attackers, neighbours)
        return jnp.arange(len(gram)) == jnp.argmin(scores)

    return gram_rule("krum", weigh, num_attackers, preparation, _least_for_krum(neighbours))


@validate_arguments
def multi_krum(
    num_attackers: CountOrZero = 1,
    num_selected: Count | None = None,
    *,
    neighbours: Neighbours = "paper",
    **preparation: Unpack[Preparation],
) -> Aggregator:
    """The mean of the updates with the best scores of `krum`.

    Args:
        num_attackers: f.
        num_selected: So many; None is m - f. All of them where fewer are present.
        neighbours, preparation: See `krum`.

    Raises:
        InputError: See `krum`.

    References:
        Blanchard et al., NeurIPS 2017, which leaves the number open; ByzFL takes m - f, ByzantineMomentum m - f - 2.
    """

    def weigh(gram: Array, is_member: Array) -> Array:
        scores, num_members = krum_scores(gram, is_member, num_attackers, neighbours), count(is_member)
        size = num_members - num_attackers if num_selected is None else jnp.minimum(num_selected, num_members)
        return ((ranks(scores, is_member) < size) & is_member) / jnp.maximum(size, 1)

    return gram_rule("multi_krum", weigh, num_attackers, preparation, _least_for_krum(neighbours))


# ---- minimum diameter ------------------------------------------------------------------------------------------------
def subset_of_rank(rank: Array, num_rows: int, size: int) -> Array:
    """[num_rows] bool: the subset of `size` rows that has this number, from 0, among all of them."""
    table = np.array([[math.comb(row, k) for row in range(num_rows)] for k in range(size + 1)]).reshape(size + 1, -1)
    chosen = jnp.zeros(num_rows, bool)
    for k in range(size, 0, -1):  # the combinatorial number system
        row = jnp.searchsorted(jnp.asarray(table[k]), rank, side="right") - 1
        chosen, rank = chosen.at[row].set(True), rank - jnp.asarray(table[k])[row]
    return chosen


def subset_of_minimum_diameter(gram: Array, is_member: Array, num_attackers: int) -> Array:
    """[rows] bool: the m - f members whose largest distance from each other is the smallest."""
    num_rows, distances = len(gram), squared_distances(gram)

    def diameter(rank: Array) -> Array:
        dropped = subset_of_rank(rank, num_rows, num_attackers)
        kept = is_member & ~dropped
        largest = jnp.max(jnp.where(kept[:, None] & kept, distances, 0))
        return jnp.where(jnp.all(is_member | ~dropped), largest, jnp.inf)  # an absent row cannot be dropped

    candidates = jnp.arange(math.comb(num_rows, num_attackers))
    diameters = jax.lax.map(diameter, candidates, batch_size=max(1, _BLOCK // num_rows**2))
    return is_member & ~subset_of_rank(candidates[jnp.argmin(diameters)], num_rows, num_attackers)


@validate_arguments
def minimum_diameter_mean(num_attackers: CountOrZero = 1, **preparation: Unpack[Preparation]) -> Aggregator:
    """The mean of the m - f updates with the least diameter (MDA), found by trying all subsets.

        S = argmin_{|S| = m - f} max_{i, j in S} |u_i - u_j|,   u = 1/(m - f) sum_{i in S} u_i

    Assumes 2 f < m.

    Args:
        num_attackers: f.
        preparation: See `Preparation`.

    Raises:
        InputError: When traced, for cohorts with 2 f >= m, or with more than 100,000 subsets.

    References:
        El Mhamdi et al., Genuinely Distributed Byzantine Machine Learning, PODC 2020; code LPD-EPFL/ByzantineMomentum,
        aggregators/brute.py.
    """

    def weigh(gram: Array, is_member: Array) -> Array:
        if (num_subsets := math.comb(len(gram), num_attackers)) > MOST_SUBSETS:
            raise InputError(
                f"aggregator 'minimum_diameter_mean': {num_subsets} subsets of {len(gram)} updates without "
                f"num_attackers={num_attackers} are more than {MOST_SUBSETS}. Take multi_krum, or smaller cohorts."
            )
        is_kept = subset_of_minimum_diameter(gram, is_member, num_attackers)
        return is_kept / jnp.maximum(count(is_kept), 1)

    return gram_rule("minimum_diameter_mean", weigh, num_attackers, preparation)


# ---- geometric median ------------------------------------------------------------------------------------------------
def distances_from(gram: Array, coefficients: Array) -> Array:
    """[rows]: |u_i - z| of z = sum_j c_j u_j, to full relative precision even where z is nearly u_i."""
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
    """The point with the least sum of distances from all updates, by smoothed Weiszfeld steps.

        z <- sum_i b_i u_i / sum_i b_i,   b_i = p_i / max(nu, |u_i - z|)

    Assumes that less than half of the weight lies.
    Started at the mean, a lie of any size s moves z by s / m^k after k steps, and hides its progress in the objective,
    so the default starts at zero, the model that the clients received; where it ends does not depend on that. A fixed
    nu makes the result the mean as soon as all updates are shorter than it.

    Released codes: RFA start="mean", smoothing=1e-5, num_steps=4, tolerance=1e-6, weighting="samples"; ByzFL
    smoothing=.1, num_steps=3; byzantine-robust-noniid-optimizer smoothing=.1, num_steps=8, 9 % from the limit.

    Args:
        num_attackers: f; the rule itself does not need it, but the steps "nnm" and "arc" do.
        num_steps: At most so many.
        smoothing: nu; None is 1e-6 of the median norm of the updates.
        start: "zero" or "mean".
        tolerance: Stop where a step changes the objective by less than this share of it; 0 never.
        weighting: Of p_i. Weights by what clients send, such as "samples", can be a lie, too.
        preparation: See `Preparation`.

    Raises:
        InputError: For unknown options, or a weighting behind bucketing.

    References:
        Pillutla, Kakade and Harchaoui, Robust Aggregation for Federated Learning, IEEE TSP 2022; code krishnap25/RFA.
    """
    weighting = resolve_weighting(weighting)
    steps = prepare("geometric_median", num_attackers, preparation)
    is_uniform = weighting is resolve_weighting("uniform")
    if not is_uniform and "bucketing" in preparation.get("before", ()):
        raise InputError("weighting: buckets have none. Leave out weighting, or 'bucketing' in before.")

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

    return Aggregator(weighting.init, update)


# ---- bounded norms ---------------------------------------------------------------------------------------------------
@validate_arguments
def norm_bounded_mean(
    radius: Radius = "median", *, num_attackers: CountOrZero = 0, **preparation: Unpack[Preparation]
) -> Aggregator:
    """The mean of updates that are cut to a norm.

        u = 1/m sum_i min(1, c / |u_i|) u_i

    Assumes nothing; f clients move the result by no more than 2 c f / m.

    Args:
        radius: c, a number, or "median", the median norm of the updates.
        num_attackers: f; the rule itself does not need it, but the steps "nnm" and "arc" do.
        preparation: See `Preparation`.

    References:
        Sun et al., Can You Really Backdoor Federated Learning?, 2019. arXiv:1911.07963
    """

    def weigh(gram: Array, is_member: Array) -> Array:
        factors = clip_factors(geometry.lengths(gram), is_member, radius)
        return is_member * factors / jnp.maximum(count(is_member), 1)

    return gram_rule("norm_bounded_mean", weigh, num_attackers, preparation)

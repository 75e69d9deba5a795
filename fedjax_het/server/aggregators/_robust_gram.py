"""Robust rules that combine updates with coefficients computed from their Gram matrix.

Krum, Multi-Krum, minimum-diameter averaging, the norm-bounded mean, and FLTrust. m is the number of present clients,
f = num_attackers, D_ij = |u_i - u_j|^2; all rules are unweighted.
"""

import math
from collections.abc import Callable
from typing import Literal, Unpack

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_het import geometry, tree
from fedjax_het.algorithm import Aggregator, Problem
from fedjax_het.errors import InputError
from fedjax_het.server.aggregators._robust_steps import (
    Preparation,
    Radius,
    RobustBuffers,
    clip_factors,
    count,
    prepare,
    ranks,
    squared_distances,
)
from fedjax_het.types import Aggregate, Array, PyTree, ServerView
from fedjax_het.validation import Count, CountOrZero, validate_arguments

Neighbours = Literal["paper", "byzfl"]
MAX_SUBSETS = 100_000
_BLOCK = 1 << 21  # distance matrix entries of the subsets compared at a time


def gram_rule(
    name: str,
    weigh: Callable[[Array, Array], Array],
    num_attackers: int,
    preparation: Preparation,
    min_rows: Callable[[int], int] = lambda num_attackers: 1,
    *,
    num_selected: int = 0,
    is_selective: bool = False,
) -> Aggregator:
    """A rule that combines the updates, after the preparation steps.

    Args:
        name: The name of the rule, for messages.
        weigh: (Gram matrix, is_member) -> the coefficients [rows].
        num_attackers: f.
        preparation: The steps before the rule, and other shared options.
        min_rows: f -> the minimum number of rows; with fewer, the model is unchanged.
        num_selected: Number of rows that the rule selects; a smaller cohort raises an error.
        is_selective: See `Aggregator`.
    """
    steps = prepare(name, num_attackers, preparation)

    def update(problem: Problem, state: PyTree, view: ServerView) -> tuple[Aggregate, PyTree]:
        steps.check(view, minimum := min_rows(num_attackers))
        if (size := steps.num_rows(len(view.cohort))) < num_selected:
            raise InputError(
                f"num_selected: expected at most {size}, the updates of a round, got {num_selected}. Lower it, or "
                "remove it."
            )
        updates = view.updates.select(steps.is_treated)
        members = steps.members(updates, view)
        is_usable = steps.has_majority(members.is_member) & (count(members.is_member) >= minimum)
        weights = jnp.where(is_usable, weigh(members.gram, members.is_member), 0)
        return steps.decide(updates.combine(weights @ members.coefficients), view, is_usable), state

    return Aggregator(lambda shared, num_clients: (), update, "gram", is_selective=is_selective)


# ---- Krum ------------------------------------------------------------------------------------------------------------
def krum_scores(gram: Array, is_member: Array, num_attackers: int, neighbours: Neighbours) -> Array:
    """[rows]: sum_j D_ij over the nearest neighbors, m - f - 2 ("paper") or m - f - 1 ("byzfl"); inf if absent."""
    num_near = count(is_member) - num_attackers - (2 if neighbours == "paper" else 1)
    is_other = is_member & ~jnp.eye(len(gram), dtype=bool)
    ordered = jnp.sort(jnp.where(is_other, squared_distances(gram), jnp.inf), axis=1)
    scores = jnp.sum(jnp.where(jnp.arange(len(gram)) < num_near, ordered, 0), axis=1)
    return jnp.where(is_member, scores, jnp.inf)


def _min_rows_of_krum(neighbours: Neighbours) -> Callable[[int], int]:
    return lambda num_attackers: num_attackers + (3 if neighbours == "paper" else 1)


@validate_arguments
def krum(
    num_attackers: CountOrZero = 1, *, neighbours: Neighbours = "paper", **preparation: Unpack[Preparation]
) -> Aggregator:
    """Select the update closest to its nearest neighbors (Krum).

        u = u_k,   k = argmin_i sum_{j in the m - f - 2 nearest others of i} |u_i - u_j|^2

    Ties are broken in cohort order. Assumes 2 f + 2 < m, and that honest updates resemble each other: on heterogeneous
    data the server learns from one client per round, even without attackers.

    Args:
        num_attackers: f, the maximum number of attackers per round.
        neighbours: "paper" | "byzfl": m - f - 1 neighbors, which allows 2 f < m.
        preparation: See `Preparation`.

    Raises:
        InputError: When traced, 2 f >= m or m < f + 3. If too few clients are present in a round, the model is
            unchanged.

    References:
        Blanchard et al., Machine Learning with Adversaries: Byzantine Tolerant Gradient Descent, NeurIPS 2017.
    """

    def weigh(gram: Array, is_member: Array) -> Array:
        scores = krum_scores(gram, is_member, num_attackers, neighbours)
        return jnp.arange(len(gram)) == jnp.argmin(scores)

    return gram_rule("krum", weigh, num_attackers, preparation, _min_rows_of_krum(neighbours), is_selective=True)


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
        num_selected: Number of updates (default None, m - f). If fewer are present, all of them are used.
        neighbours, preparation: See `krum`.

    Raises:
        InputError: See `krum`.

    References:
        Blanchard et al., NeurIPS 2017, without a number; ByzFL uses m - f, ByzantineMomentum m - f - 2.
    """

    def weigh(gram: Array, is_member: Array) -> Array:
        scores, num_members = krum_scores(gram, is_member, num_attackers, neighbours), count(is_member)
        size = num_members - num_attackers if num_selected is None else jnp.minimum(num_selected, num_members)
        return ((ranks(scores, is_member) < size) & is_member) / jnp.maximum(size, 1)

    min_rows = _min_rows_of_krum(neighbours)
    size = num_selected or 0
    return gram_rule("multi_krum", weigh, num_attackers, preparation, min_rows, num_selected=size, is_selective=True)


# ---- minimum diameter ------------------------------------------------------------------------------------------------
def subset_of_rank(rank: Array, num_rows: int, size: int) -> Array:
    """[num_rows] bool: the subset of `size` rows with this rank, from 0, among all subsets."""
    table = np.array([[math.comb(row, k) for row in range(num_rows)] for k in range(size + 1)]).reshape(size + 1, -1)
    chosen = jnp.zeros(num_rows, bool)
    for k in range(size, 0, -1):  # the combinatorial number system
        row = jnp.searchsorted(jnp.asarray(table[k]), rank, side="right") - 1
        chosen, rank = chosen.at[row].set(True), rank - jnp.asarray(table[k])[row]
    return chosen


def subset_of_minimum_diameter(gram: Array, is_member: Array, num_attackers: int) -> Array:
    """[rows] bool: the m - f members with the smallest maximum pairwise distance."""
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
    """The mean of the m - f updates with the smallest diameter (MDA), by exhaustive search over subsets.

        S = argmin_{|S| = m - f} max_{i, j in S} |u_i - u_j|,   u = 1/(m - f) sum_{i in S} u_i

    Assumes 2 f < m. Subsets with the same most distant pair tie; ties are broken in cohort order.

    Args:
        num_attackers: f.
        preparation: See `Preparation`.

    Raises:
        InputError: When traced, 2 f >= m, or there are more than 100,000 subsets.

    References:
        El Mhamdi et al., Genuinely Distributed Byzantine Machine Learning, PODC 2020; code LPD-EPFL/ByzantineMomentum,
        aggregators/brute.py.
    """

    def weigh(gram: Array, is_member: Array) -> Array:
        if (num_subsets := math.comb(len(gram), num_attackers)) > MAX_SUBSETS:
            raise InputError(
                f"aggregator 'minimum_diameter_mean': {num_subsets} subsets of {len(gram)} updates without "
                f"num_attackers={num_attackers} exceed the limit of {MAX_SUBSETS}. Use multi_krum, or smaller cohorts."
            )
        is_kept = subset_of_minimum_diameter(gram, is_member, num_attackers)
        return is_kept / jnp.maximum(count(is_kept), 1)

    return gram_rule("minimum_diameter_mean", weigh, num_attackers, preparation, is_selective=True)


# ---- bounded norms ---------------------------------------------------------------------------------------------------
@validate_arguments
def norm_bounded_mean(
    radius: Radius = "median", *, num_attackers: CountOrZero = 0, **preparation: Unpack[Preparation]
) -> Aggregator:
    """The mean of norm-clipped updates.

        u = 1/m sum_i min(1, c / |u_i|) u_i

    No assumption on attackers; f clients shift the result by at most 2 c f / m.

    Args:
        radius: c: a number, or "median", the median norm of the updates.
        num_attackers: f; only used by the steps "nnm" and "arc".
        preparation: See `Preparation`.

    References:
        Sun et al., Can You Really Backdoor Federated Learning?, 2019. arXiv:1911.07963
    """

    def weigh(gram: Array, is_member: Array) -> Array:
        factors = clip_factors(geometry.lengths(gram), is_member, radius)
        return is_member * factors / jnp.maximum(count(is_member), 1)

    return gram_rule("norm_bounded_mean", weigh, num_attackers, preparation)


# ---- trust -----------------------------------------------------------------------------------------------------------
def trust_coefficients(gram: Array, is_member: Array, is_root: Array) -> tuple[Array, Array]:
    """FLTrust from the Gram matrix [rows, rows]: (coefficients [rows], trust scores [rows]); the root has none."""
    norms, products = geometry.lengths(gram), gram @ is_root.astype(gram.dtype)
    own = norms @ is_root.astype(gram.dtype)
    cosines = products / tree.positive_or_one(norms) / tree.positive_or_one(own)
    trust = jnp.where(is_member & ~is_root, jnp.maximum(cosines, 0), 0)
    return trust * own / tree.positive_or_one(norms) / tree.positive_or_one(jnp.sum(trust)), trust


@validate_arguments
def fltrust(root: CountOrZero = 0, *, buffers: RobustBuffers = "in_vector") -> Aggregator:
    """Weight each update by its cosine similarity to a root client's update, rescaled to that norm (FLTrust).

        t_i = max(0, cos(u_i, g_0)),   u = sum_i t_i |g_0| / |u_i| u_i / sum_i t_i

    Assumes that the trusted root client has clean examples of all classes (100 in the paper), and tolerates any number
    of attackers: |u| <= |g_0|, whatever they send. The root's own update g_0 is not part of the sum. In a round without
    the root client, or if no score is positive, the model is unchanged, so the root should take part in every round.

    Differences from the paper: the paper's server trains on its own examples; here a client of the federation does. If
    no score is positive, the paper divides 0 by 0. The paper's server learning rate is that of the server optimizer.

    Args:
        root: The id of the client whose update is g_0.
        buffers: See `Preparation`.

    References:
        Cao, Fang, Liu and Gong, FLTrust: Byzantine-robust Federated Learning via Trust Bootstrapping, NDSS 2021.
    """
    steps = prepare("fltrust", 0, {"buffers": buffers})

    def update(problem: Problem, state: PyTree, view: ServerView) -> tuple[Aggregate, PyTree]:
        updates, is_root = view.updates.select(steps.is_treated), view.cohort == root
        coefficients, trust = trust_coefficients(updates.gram(), view.is_present, is_root & view.is_present)
        return steps.decide(updates.combine(coefficients), view, jnp.any(trust > 0)), state

    return Aggregator(lambda shared, num_clients: (), update, "gram", named_clients=(("root", (root,)),))

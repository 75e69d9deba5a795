"""Robust rules that are combinations of the updates, with coefficients found from their Gram matrix.

Krum, Multi-Krum, the subset of minimum diameter, the mean of bounded norms, and FLTrust. m is the number of clients
that are present, f = num_attackers, D_ij = |u_i - u_j|^2; all are unweighted.
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
MOST_SUBSETS = 100_000
_BLOCK = 1 << 21  # entries of the distance matrices of subsets that are compared at a time


def gram_rule(
    name: str,
    weigh: Callable[[Array, Array], Array],
    num_attackers: int,
    preparation: Preparation,
    least: Callable[[int], int] = lambda num_attackers: 1,
    *,
    num_selected: int = 0,
    is_selective: bool = False,
) -> Aggregator:
    """A rule that is a combination of the updates, or of what the steps before it make of them.

    Args:
        name: The name of the rule, for messages.
        weigh: (Gram matrix, is_member) -> the coefficients [rows].
        num_attackers: f.
        preparation: The steps before it, and other shared options.
        least: f -> the fewest rows that the rule needs; with fewer the model stays as it is.
        num_selected: Number of rows that the rule selects; a cohort with fewer is refused.
        is_selective: See `Aggregator`.
    """
    steps = prepare(name, num_attackers, preparation)

    def update(problem: Problem, state: PyTree, view: ServerView) -> tuple[Aggregate, PyTree]:
        steps.check(view, fewest := least(num_attackers))
        if (size := steps.num_rows(len(view.cohort))) < num_selected:
            raise InputError(
                f"num_selected: {num_selected} of the {size} updates of a round. Lower it, or leave it out."
            )
        updates = view.updates.select(steps.is_treated)
        members = steps.members(updates, view)
        is_usable = steps.has_majority(members.is_member) & (count(members.is_member) >= fewest)
        weights = jnp.where(is_usable, weigh(members.gram, members.is_member), 0)
        return steps.decide(updates.combine(weights @ members.coefficients), view, is_usable), state

    return Aggregator(lambda shared, num_clients: (), update, is_selective=is_selective)


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

    return gram_rule("krum", weigh, num_attackers, preparation, _least_for_krum(neighbours), is_selective=True)


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

    least = _least_for_krum(neighbours)
    size = num_selected or 0
    return gram_rule("multi_krum", weigh, num_attackers, preparation, least, num_selected=size, is_selective=True)


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

    Assumes 2 f < m. Subsets that hold the same pair of largest distance tie, and their places in the cohort decide.

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

    return gram_rule("minimum_diameter_mean", weigh, num_attackers, preparation, is_selective=True)


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
    """Trust each update as far as it goes the way of a root client's, at that one's length (FLTrust).

        t_i = max(0, cos(u_i, g_0)),   u = sum_i t_i |g_0| / |u_i| u_i / sum_i t_i

    Assumes that the root client, whom the server trusts, has clean examples of all classes (the paper: 100 of them),
    and allows any number of attackers: |u| <= |g_0|, whatever they send. Its own update g_0 is no part of the sum. In a
    round without it, or where no client is trusted, the model stays as it is; so let it take part in every round.

    Deviations: the paper's server trains on examples of its own; here that is a client of the federation. Where no
    score is positive the paper divides 0 by 0. The paper's rate of the server is the server optimizer's.

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

    return Aggregator(lambda shared, num_clients: (), update, named_clients=(("root", (root,)),))

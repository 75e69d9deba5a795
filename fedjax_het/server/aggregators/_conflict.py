"""Conflict removal between updates: FedMGC's correction by dominant updates, FedGH's pairwise harmonization.

Conflicts are removed on coefficients only: edited update i is sum_j C_ij g_j.
"""

from collections.abc import Callable
from typing import Literal

import jax
import jax.numpy as jnp

from fedjax_het import geometry, tree
from fedjax_het._internal.keys import make_key
from fedjax_het.algorithm import Aggregator
from fedjax_het.errors import InputError
from fedjax_het.server.aggregators._gram_space import Buffers, GramEdit, Scope, StackDtype, gram_space_mean
from fedjax_het.server.weightings import WeightingOrName
from fedjax_het.types import Array, ServerView
from fedjax_het.validation import Fraction, PositiveFraction, Seed, refuse_without_effect, validate_arguments

_ROUNDING_OF_SQUARES = 1e-12  # relative to its squared parts; smaller squared norms are rounding errors


def project_at_once(gram: Array, is_pair: Array) -> Array:
    """g_i - sum_j <g_i, g_j>/|g_j|^2 g_j over all marked pairs [m, m], with products of the original updates."""
    squared = jnp.diagonal(gram)
    return jnp.eye(gram.shape[0]) - jnp.where(is_pair & (squared > 0), gram / tree.positive_or_one(squared), 0)


def project_in_order(gram: Array, partners: Array, is_pair: Array, *, is_tested: bool = True) -> Array:
    """For j = partners[i, 0], partners[i, 1], ...:   g_i' <- g_i' - <g_i', g_j>/|g_j|^2 g_j

    g_i' is edited, g_j is as sent. Only marked pairs [m, m]; if `is_tested`, only those with <g_i', g_j> < 0.
    Clients are independent, so this takes one step per partner.
    """
    rows, squared = jnp.arange(gram.shape[0]), jnp.diagonal(gram)

    def step(turn: Array, running: tuple[Array, Array]) -> tuple[Array, Array]:
        coefficients, products = running  # <g_i', g_k> is updated too, to avoid matrix products in each step
        partner = partners[:, turn]
        product, size = products[rows, partner], squared[partner]
        is_removed = is_pair[rows, partner] & (size > 0) & ((product < 0) | (not is_tested))
        share = jnp.where(is_removed, product / tree.positive_or_one(size), 0)
        return coefficients.at[rows, partner].add(-share), products - share[:, None] * gram[partner]

    return jax.lax.fori_loop(0, partners.shape[1], step, (jnp.eye(gram.shape[0]), gram))[0]


def project_running(gram: Array, pairs: Array, is_pair: Array, *, is_mutual: bool) -> Array:
    """For each marked pair (i, j) in turn, if <g_i', g_j'> < 0:   g_i' <- g_i' - <g_i', g_j'>/|g_j'|^2 g_j'

    Both are edited updates; if `is_mutual`, g_j' is also projected against the old g_i'. One step per pair, so
    m^2 steps.   pairs: [n, 2], is_pair: [n].
    """
    moves, lengths = jnp.array([True, is_mutual]), geometry.lengths(gram)

    def step(turn: Array, running: tuple[Array, Array]) -> tuple[Array, Array]:
        coefficients, products = running  # products: <g_i', g_k> of edited and sent updates
        pair = pairs[turn]
        edited, with_sent = coefficients[pair], products[pair]
        squares = drop_rounding(jnp.sum(edited * with_sent, axis=1), jnp.abs(edited) @ lengths)
        product = jnp.sum(edited[0] * with_sent[1])
        is_removed = moves & is_pair[turn] & (product < 0) & jnp.all(squares > 0)
        share = jnp.where(is_removed, product / tree.positive_or_one(squares[::-1]), 0)[:, None]
        return coefficients.at[pair].add(-share * edited[::-1]), products.at[pair].add(-share * with_sent[::-1])

    return jax.lax.fori_loop(0, pairs.shape[0], step, (jnp.eye(gram.shape[0]), gram))[0]


def drop_rounding(squared: Array, parts: Array) -> Array:
    """Squared norms of sum_j c_j g_j; 0 if its parts, sum_j |c_j| |g_j|, cancel to rounding."""
    return jnp.where(squared > _ROUNDING_OF_SQUARES * jnp.square(parts), squared, 0)


# ---- dominant updates (FedMGC) --------------------------------------------------------------------------------------
AgreementMode = Literal["mean_excl", "sum_incl"]
Order = Literal["one_by_one", "simultaneous"]
Target = Literal["original", "current"]
_ROUNDING = 1e-6  # so that .3 of 10 clients is 3 in float32


def rank_by_dominance(
    gram: Array, is_present: Array, losses: Array, fraction: float = 0.5, p_mode: AgreementMode = "mean_excl"
) -> tuple[Array, Array]:
    """(clients [m] by descending z_i = p_i / l_i, absent clients last; the number of dominant clients []).

    ceil(fraction K) of the K present clients are dominant, at least one; ties are ordered by id.
    """
    scores = geometry.dominance(geometry.agreement(gram, is_present, p_mode), losses)
    num_present = jnp.sum(is_present)
    num_dominant = jnp.clip(jnp.ceil(fraction * num_present - _ROUNDING), 1, num_present)
    return jnp.argsort(jnp.where(is_present, -scores, jnp.inf), stable=True), num_dominant


@validate_arguments
def dominant_edit(
    fraction: PositiveFraction = 0.5,
    *,
    p_mode: AgreementMode = "mean_excl",
    order: Order = "one_by_one",
    target: Target = "original",
    min_norm_ratio: Fraction = 0.0,
) -> GramEdit:
    """FedMGC's edit of every update, as coefficients; arguments as in `dominant_correction`."""
    if (order, target) == ("simultaneous", "current"):
        raise InputError(
            "target: 'current' requires order='one_by_one'; with 'simultaneous', every update is still the original."
        )

    def edit(gram: Array, is_present: Array, losses: Array) -> Array:
        sizes = geometry.lengths(gram)
        is_negligible = sizes < min_norm_ratio * jnp.max(sizes)
        gram = jnp.where(is_negligible[:, None] | is_negligible, 0, gram)
        order_of_z, num_dominant = rank_by_dominance(gram, is_present, losses, fraction, p_mode)
        size = gram.shape[0]
        is_dominant = jnp.zeros(size, bool).at[order_of_z].set(jnp.arange(size) < num_dominant)
        is_pair = is_dominant & ~jnp.eye(size, dtype=bool)
        if order == "simultaneous":
            return project_at_once(gram, is_pair & (gram < 0))
        partners = jnp.broadcast_to(order_of_z, (size, size))
        if target == "original":
            return project_in_order(gram, partners, is_pair)
        pairs = jnp.stack([jnp.repeat(jnp.arange(size), size), partners.ravel()], axis=1)
        return project_running(gram, pairs, is_pair[pairs[:, 0], pairs[:, 1]], is_mutual=False)

    return edit


@validate_arguments
def dominant_correction(
    fraction: PositiveFraction = 0.5,
    weighting: WeightingOrName = "uniform",
    *,
    p_mode: AgreementMode = "mean_excl",
    order: Order = "one_by_one",
    target: Target = "original",
    min_norm_ratio: Fraction = 0.0,
    scope: Scope = "model",
    buffers: Buffers = "weighted_mean",
    stack: StackDtype = "float32",
) -> Aggregator:
    """Remove from each update the components that conflict with dominant updates, and average.

        p_ij = (|g_i| + |g_j|)/2 cos(g_i, g_j),   p_i = 1/(K-1) sum_{j != i} p_ij,   z_i = p_i / l_i
        dominant: the ceil(fraction K) clients of largest z
        for each dominant s in descending z, s != i:   if g_i' . g_s < 0:   g_i' <- g_i' - (g_i' . g_s)/|g_s|^2 g_s
        u = 1/K sum_i g_i'

    Zero updates neither agree nor conflict with others. With a single client, its update is unchanged.
    Reads: reports["loss"] (l_i).

    Args:
        fraction: The paper's λ, .1 to .9, best .5. 1: PCGrad in a fixed order.
        weighting: "uniform" (default, 1/m as in Algorithm 2), "samples" or any Weighting.
        p_mode: "mean_excl" (Def. 3; the text's sum without 1/(K-1) gives the same ranking) | "sum_incl" (Algorithm 1,
            p_ii = |g_i|, favors long updates).
        order: "one_by_one" (Algorithm 2) | "simultaneous": all products use the original updates.
        target: "original" g_s | "current": g_s as corrected so far, with clients ordered by id.
        min_norm_ratio: Updates shorter than this fraction of the longest count as zero, neither dominant nor in
            conflict. With 0 even tiny updates vote: p_ij tends to |g_j| cos / 2 as |g_i| does to 0. Recommended: 1e-8.
        scope, buffers, stack: See `gram_space_mean`.

    Returns:
        An aggregator of leaves [cohort, ...] -> [...]; Gram matrix [m, m] in float64, two passes over the stack.

    Raises:
        InputError: An option is unknown, or, when traced, clients do not report their loss.

    References:
        Wang et al., Joint Focal Loss and Dominant Gradient Correction for Gradient Conflict in Federated Learning
        (FedMGC); no code was released.
    """
    edit = dominant_edit(fraction, p_mode=p_mode, order=order, target=target, min_norm_ratio=min_norm_ratio)
    return gram_space_mean(
        edit,
        weighting,
        extra_inputs=lambda view: (view.uploads.reports["loss"],),
        scope=scope,
        buffers=buffers,
        stack=stack,
    )


# ---- pairs (FedGH) --------------------------------------------------------------------------------------------------
ConflictTest = Literal["current", "original", "sequential"]
PairOrder = Literal["lexicographic", "random"]


def lexicographic_order(view: ServerView, seed: int) -> Array:
    """[m, m]: the ranks of pairs in the order (0, 1), (0, 2), ... of client ids."""
    place = jnp.argsort(jnp.argsort(view.cohort))
    return jnp.minimum(place[:, None], place) * len(place) + jnp.maximum(place[:, None], place)


def random_order(view: ServerView, seed: int) -> Array:
    """[m, m]: the ranks of pairs in a new random order each round, a function of (seed, round, both ids)."""
    key = jax.random.fold_in(make_key(seed), view.received.round)

    def draw(first: Array, second: Array) -> Array:
        pair = jax.random.fold_in(jax.random.fold_in(key, jnp.minimum(first, second)), jnp.maximum(first, second))
        return jax.random.bits(pair, (), "uint32")

    return jax.vmap(jax.vmap(draw, (None, 0)), (0, None))(view.cohort, view.cohort)


PAIR_ORDERS: dict[PairOrder, Callable[[ServerView, int], Array]] = {
    "lexicographic": lexicographic_order,
    "random": random_order,
}


@validate_arguments
def harmonized_edit(conflict_test: ConflictTest = "current") -> GramEdit:
    """FedGH's edit of every update, as coefficients; see `harmonized_mean`."""

    def edit(gram: Array, is_present: Array, turns: Array) -> Array:
        size = gram.shape[0]
        if conflict_test == "sequential":
            first, second = jnp.triu_indices(size)
            pairs = jnp.stack([first, second], axis=1)[jnp.argsort(turns[first, second], stable=True)]
            return project_running(gram, pairs, pairs[:, 0] != pairs[:, 1], is_mutual=True)
        is_original = conflict_test == "original"
        is_pair = geometry.is_conflict(gram) if is_original else ~jnp.eye(size, dtype=bool)
        partners = jnp.argsort(turns, axis=1, stable=True)
        return project_in_order(gram, partners, is_pair, is_tested=not is_original)

    return edit


@validate_arguments
def harmonized_mean(
    conflict_test: ConflictTest = "current",
    weighting: WeightingOrName = "samples",
    *,
    pair_order: PairOrder = "lexicographic",
    seed: Seed = 0,
    scope: Scope = "model",
    buffers: Buffers = "weighted_mean",
    stack: StackDtype = "float32",
) -> Aggregator:
    """Project the updates of each conflicting pair onto each other's normal plane, and average.

        for each pair i < j in conflict:   g_i' <- g_i' - (g_i' . g_j)/|g_j|^2 g_j,   g_j' likewise against g_i
        u = sum_i p_i g_i'

    Zero updates do not conflict with others. With two clients all tests agree. With three or more conflicting clients,
    the result depends on the order of the pairs, hence on the ids. The paper does not specify the test, and no authors'
    code was found. The default equals PCGrad with partners ordered by id.

    Args:
        conflict_test: "current": g_i' . g_j < 0 just before the projection, so only opposing components are removed
            (PCGrad) | "original": g_i . g_j < 0, tested once; a later projection may then remove an agreeing component
            | "sequential": g_i' . g_j' < 0, with projection onto the current g_j'; pair by pair, m^2/2 steps.
        weighting: The weights p_i: "samples", "uniform" or any Weighting.
        pair_order: "lexicographic" by id | "random", drawn each round.
        seed: The seed of the random pair order.
        scope, buffers, stack: See `gram_space_mean`.

    Returns:
        An aggregator of leaves [cohort, ...] -> [...]; Gram matrix [m, m] in float64, two passes over the stack.

    Raises:
        InputError: An option is unknown.

    References:
        Zhang, Sun and Chen, FedGH: Federated Learning via Gradient Harmonization, 2023. arXiv:2309.06692
    """
    if pair_order == "lexicographic":
        refuse_without_effect(harmonized_mean, "with pair_order='lexicographic'", seed=seed)
    return gram_space_mean(
        harmonized_edit(conflict_test),
        weighting,
        extra_inputs=lambda view: (PAIR_ORDERS[pair_order](view, seed),),
        scope=scope,
        buffers=buffers,
        stack=stack,
    )

"""Removal of conflicts between updates: FedMGC's correction against dominant ones, FedGH's harmonization of pairs.

Conflicts are taken out on coefficients alone: edited update i is sum_j C_ij g_j.
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

_ROUNDING_OF_SQUARES = 1e-12  # of its squared parts: what an update that was cancelled to less has left is rounding


def project_at_once(gram: Array, is_pair: Array) -> Array:
    """g_i - sum_j <g_i, g_j>/|g_j|^2 g_j over all marked pairs [m, m], every product taken before any change."""
    squared = jnp.diagonal(gram)
    return jnp.eye(gram.shape[0]) - jnp.where(is_pair & (squared > 0), gram / tree.positive_or_one(squared), 0)


def project_in_order(gram: Array, partners: Array, is_pair: Array, *, is_tested: bool = True) -> Array:
    """For j = partners[i, 0], partners[i, 1], ...:   g_i' <- g_i' - <g_i', g_j>/|g_j|^2 g_j

    g_i' is edited, g_j stays as it was sent. Only marked pairs [m, m], and where `is_tested` only if <g_i', g_j> < 0.
    No client waits for another, so this takes as many steps as there are partners.
    """
    rows, squared = jnp.arange(gram.shape[0]), jnp.diagonal(gram)

    def step(turn: Array, running: tuple[Array, Array]) -> tuple[Array, Array]:
        coefficients, products = running  # <g_i', g_k> is updated along, so that no step multiplies matrices
        partner = partners[:, turn]
        product, size = products[rows, partner], squared[partner]
        is_removed = is_pair[rows, partner] & (size > 0) & ((product < 0) | (not is_tested))
        share = jnp.where(is_removed, product / tree.positive_or_one(size), 0)
        return coefficients.at[rows, partner].add(-share), products - share[:, None] * gram[partner]

    return jax.lax.fori_loop(0, partners.shape[1], step, (jnp.eye(gram.shape[0]), gram))[0]


def project_running(gram: Array, pairs: Array, is_pair: Array, *, is_mutual: bool) -> Array:
    """For each marked pair (i, j) in turn, if <g_i', g_j'> < 0:   g_i' <- g_i' - <g_i', g_j'>/|g_j'|^2 g_j'

    Both are the edited ones; where `is_mutual` g_j' loses its part along the old g_i' as well. One step per pair, so
    m^2 steps.   pairs: [n, 2], is_pair: [n].
    """
    moves, lengths = jnp.array([True, is_mutual]), geometry.lengths(gram)

    def step(turn: Array, running: tuple[Array, Array]) -> tuple[Array, Array]:
        coefficients, products = running  # products: <g_i', g_k> of edited and sent updates
        pair = pairs[turn]
        both, with_sent = coefficients[pair], products[pair]
        squares = drop_rounding(jnp.sum(both * with_sent, axis=1), jnp.abs(both) @ lengths)
        product = jnp.sum(both[0] * with_sent[1])
        is_removed = moves & is_pair[turn] & (product < 0) & jnp.all(squares > 0)
        share = jnp.where(is_removed, product / tree.positive_or_one(squares[::-1]), 0)[:, None]
        return coefficients.at[pair].add(-share * both[::-1]), products.at[pair].add(-share * with_sent[::-1])

    return jax.lax.fori_loop(0, pairs.shape[0], step, (jnp.eye(gram.shape[0]), gram))[0]


def drop_rounding(squared: Array, parts: Array) -> Array:
    """Squared lengths of sum_j c_j g_j; 0 where its parts, sum_j |c_j| |g_j|, cancel to rounding."""
    return jnp.where(squared > _ROUNDING_OF_SQUARES * jnp.square(parts), squared, 0)


# ---- dominant updates (FedMGC) --------------------------------------------------------------------------------------
AgreementMode = Literal["mean_excl", "sum_incl"]
Order = Literal["one_by_one", "simultaneous"]
Target = Literal["original", "current"]
_ROUNDING = 1e-6  # so that .3 of 10 clients are 3 in float32 too


def rank_by_dominance(
    gram: Array, is_present: Array, losses: Array, fraction: float = 0.5, p_mode: AgreementMode = "mean_excl"
) -> tuple[Array, Array]:
    """(clients [m] by falling z_i = p_i / l_i, absent ones last; how many of them are dominant []).

    ceil(fraction K) of the K that are present, at least one; the lower id first where z is equal.
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
    """FedMGC's edit of every update, as coefficients; see `dominant_correction`, also for the arguments."""
    if (order, target) == ("simultaneous", "current"):
        raise InputError("target: 'current' needs order='one_by_one'; at once, every update is still the original.")

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
    """Take out of each update what points against the dominant ones, and average.

        p_ij = (|g_i| + |g_j|)/2 cos(g_i, g_j),   p_i = 1/(K-1) sum_{j != i} p_ij,   z_i = p_i / l_i
        dominant: the ceil(fraction K) clients of largest z
        for each dominant s in falling z, s != i:   if g_i' . g_s < 0:   g_i' <- g_i' - (g_i' . g_s)/|g_s|^2 g_s
        u = 1/K sum_i g_i'

    Zero updates agree and conflict with no other. The update of one client alone is not changed.
    Reads: reports["loss"] (l_i).

    Args:
        fraction: the paper's λ, .1 to .9, best .5; 1 is PCGrad in a fixed order.
        weighting: Algorithm 2's 1/m, "uniform"; "samples" or any Weighting.
        p_mode: "mean_excl" (Def. 3; the text's sum without 1/(K-1) ranks alike) | "sum_incl" (Algorithm 1, p_ii =
            |g_i|, favours long updates).
        order: "one_by_one" (Algorithm 2) | "simultaneous": all products of the original updates.
        target: "original" g_s | "current": g_s as corrected so far, clients in the order of their ids.
        min_norm_ratio: updates shorter than this share of the longest count as zero, neither dominant nor in conflict;
            0 lets the tiniest vote: p_ij tends to |g_j| cos / 2 as |g_i| does to 0. 1e-8 is a good value.
        scope, buffers, stack: see `gram_space_mean`.

    Returns:
        An aggregator of leaves [cohort, ...] -> [...]; Gram matrix [m, m] in float64, two passes over the stack.

    Raises:
        InputError: for unknown options, and, when traced, where no client reports its loss.

    References:
        Wang et al., Joint Focal Loss and Dominant Gradient Correction for Gradient Conflict in Federated Learning
        (FedMGC); no code was released.
    """
    edit = dominant_edit(fraction, p_mode=p_mode, order=order, target=target, min_norm_ratio=min_norm_ratio)
    return gram_space_mean(edit, weighting, extra_inputs=_losses, scope=scope, buffers=buffers, stack=stack)


def _losses(view: ServerView) -> tuple[Array]:
    if "loss" not in view.uploads.reports:
        raise InputError(
            "the aggregator reads reports['loss'], which no client sends. "
            'Add reports={"loss": measures.training_loss()} to the Algorithm.'
        )
    return (view.uploads.reports["loss"],)


# ---- pairs (FedGH) --------------------------------------------------------------------------------------------------
ConflictTest = Literal["current", "original", "sequential"]
PairOrder = Literal["lexicographic", "random"]


def lexicographic_order(view: ServerView, seed: int) -> Array:
    """[m, m]: the ranks of pairs, the smallest first: (0, 1), (0, 2), ... by the clients' ids."""
    place = jnp.argsort(jnp.argsort(view.cohort))
    return jnp.minimum(place[:, None], place) * len(place) + jnp.maximum(place[:, None], place)


def random_order(view: ServerView, seed: int) -> Array:
    """[m, m]: the same in an order drawn anew each round, a function of (seed, round, the two ids)."""
    key = jax.random.fold_in(make_key(seed), view.received.round)

    def draw(one: Array, other: Array) -> Array:
        pair = jax.random.fold_in(jax.random.fold_in(key, jnp.minimum(one, other)), jnp.maximum(one, other))
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
    """Project the two updates of every conflicting pair onto each other's normal plane, and average.

        for each pair i < j in conflict:   g_i' <- g_i' - (g_i' . g_j)/|g_j|^2 g_j,   g_j' likewise against g_i
        u = sum_i p_i g_i'

    Zero updates conflict with no other. With two clients all tests agree. For three or more in conflict the result
    depends on the order of the pairs, so on the ids. The paper's text leaves the test open; no authors' code was found.
    The default equals PCGrad with partners in the order of ids.

    Args:
        conflict_test: "current": g_i' . g_j < 0 just before the projection, so that only what opposes is taken out
            (PCGrad) | "original": g_i . g_j < 0, decided once; a later projection may then take out an agreeing part |
            "sequential": g_i' . g_j' < 0, and projects on g_j', both as they run; one pair after another, m^2/2 steps.
        weighting: of p_i, "samples", "uniform" or any Weighting.
        pair_order: "lexicographic" by id | "random", drawn anew each round.
        seed: of the random pair order.
        scope, buffers, stack: see `gram_space_mean`.

    Returns:
        An aggregator of leaves [cohort, ...] -> [...]; Gram matrix [m, m] in float64, two passes over the stack.

    Raises:
        InputError: for unknown options.

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

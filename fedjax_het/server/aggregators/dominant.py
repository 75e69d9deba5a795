"""Correct every update against the dominant ones (FedMGC)."""

import jax.numpy as jnp

from fedjax_het import geometry
from fedjax_het.algorithm import Aggregator, Weighting
from fedjax_het.errors import InputError, nearest
from fedjax_het.server.aggregators import projection
from fedjax_het.server.aggregators.gram import Edit, edited_mean
from fedjax_het.types import Array, ServerView
from fedjax_het.validation import Fraction, PositiveFraction, validate_arguments

ORDERS = ("one_by_one", "simultaneous")
TARGETS = ("original", "current")
_ROUNDING = 1e-6  # so that .3 of 10 clients are 3 in float32 too


def ranking(
    gram: Array, is_present: Array, losses: Array, fraction: float = 0.5, p_mode: str = "mean_excl"
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
    p_mode: str = "mean_excl",
    order: str = "one_by_one",
    target: str = "original",
    min_norm_ratio: Fraction = 0.0,
) -> Edit:
    """FedMGC's revision of every update, as coefficients of the Gram core; see `dominant_correction`."""
    options = {"p_mode": (p_mode, geometry.AGREEMENTS), "order": (order, ORDERS), "target": (target, TARGETS)}
    for name, (value, known) in options.items():
        if value not in known:
            raise InputError(f"{name}: unknown option '{value}'. {nearest(value, known)}")
    if (order, target) == ("simultaneous", "current"):
        raise InputError("target: 'current' needs order='one_by_one'; at once, every update is still the original.")

    def edit(gram: Array, is_present: Array, losses: Array) -> Array:
        sizes = geometry.lengths(gram)
        is_negligible = sizes < min_norm_ratio * jnp.max(sizes)
        gram = jnp.where(is_negligible[:, None] | is_negligible, 0, gram)
        order_of_z, num_dominant = ranking(gram, is_present, losses, fraction, p_mode)
        size = gram.shape[0]
        is_dominant = jnp.zeros(size, bool).at[order_of_z].set(jnp.arange(size) < num_dominant)
        is_pair = is_dominant & ~jnp.eye(size, dtype=bool)
        if order == "simultaneous":
            return projection.at_once(gram, is_pair & (gram < 0))
        partners = jnp.broadcast_to(order_of_z, (size, size))
        if target == "original":
            return projection.in_turn(gram, partners, is_pair)
        pairs = jnp.stack([jnp.repeat(jnp.arange(size), size), partners.ravel()], axis=1)
        return projection.running(gram, pairs, is_pair[pairs[:, 0], pairs[:, 1]], is_mutual=False)

    return edit


@validate_arguments
def dominant_correction(
    fraction: PositiveFraction = 0.5,
    weighting: str | Weighting = "uniform",
    *,
    p_mode: str = "mean_excl",
    order: str = "one_by_one",
    target: str = "original",
    min_norm_ratio: Fraction = 0.0,
    scope: str = "model",
    buffers: str = "weighted_mean",
    stack: str = "float32",
) -> Aggregator:
    """Take out of each update what points against the dominant ones, and average.

        p_ij = (|g_i| + |g_j|)/2 cos(g_i, g_j),   p_i = 1/(K-1) sum_{j != i} p_ij,   z_i = p_i / l_i
        dominant: the ceil(fraction K) clients of largest z
        for each dominant s in falling z, s != i:   if g_i' . g_s < 0:   g_i' <- g_i' - (g_i' . g_s)/|g_s|^2 g_s
        u = 1/K sum_i g_i'

    Shapes: leaves [cohort, ...] -> [...]; Gram matrix [m, m] in float64, two passes over the stack.
    Reads: reports["loss"] (l_i).
    fraction: the paper's λ, .1 to .9, best .5; 1 is PCGrad in a fixed order.   weighting: Algorithm 2's 1/m, "uniform".
    p_mode: "mean_excl" (Def. 3) | "sum_excl" (the text; the same ranking) | "sum_incl" (Algorithm 1, p_ii = |g_i|,
    favours long updates).   order: "one_by_one" (Algorithm 2) | "simultaneous": all products of the original updates.
    target: "original" g_s | "current": g_s as corrected so far, clients in the order of their ids.
    min_norm_ratio: updates shorter than this share of the longest count as zero, neither dominant nor in conflict; 0
    lets the tiniest vote: p_ij tends to |g_j| cos / 2 as |g_i| does to 0. 1e-8 is a good value.
    scope, buffers, stack: see `edited_mean`.
    Zero updates agree and conflict with nobody. One client alone is handed through.
    Wang et al., Joint Focal Loss and Dominant Gradient Correction for Gradient Conflict in Federated Learning
    (FedMGC); no code was released.
    """
    edit = dominant_edit(fraction, p_mode=p_mode, order=order, target=target, min_norm_ratio=min_norm_ratio)
    return edited_mean(edit, weighting, evidence=_losses, scope=scope, buffers=buffers, stack=stack)


def _losses(view: ServerView) -> tuple[Array]:
    if "loss" not in view.uploads.reports:
        raise InputError(
            "the aggregator reads reports['loss'], which no client sends. "
            'Add reports={"loss": measures.training_loss()} to the Algorithm.'
        )
    return (view.uploads.reports["loss"],)

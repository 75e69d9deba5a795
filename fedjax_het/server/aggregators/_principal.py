"""Means of updates projected onto their principal directions (FedLD)."""

from collections.abc import Callable
from typing import Literal, NamedTuple

import jax.numpy as jnp
from jaxtyping import Bool, Float

from fedjax_het import tree
from fedjax_het._internal.decompositions import eigh
from fedjax_het.algorithm import Aggregator
from fedjax_het.server.aggregators._gram_space import Buffers, GramEdit, Scope, StackDtype, gram_space_mean
from fedjax_het.server.weightings import WeightingOrName
from fedjax_het.types import Array
from fedjax_het.validation import CountOrZero, PositiveFraction, refuse_without_effect, validate_arguments

_RANK = 1e-12  # eigenvalues below this fraction of the largest are rounding errors
_SMALLEST_PROJECTION = 1e-14  # relative to the norm of the update; smaller projections are rounding errors


class Axes(NamedTuple):
    """The eigendecomposition of A = 1/m G G^T, largest first, and the selected axes."""

    eigenvalues: Float[Array, "cohort"]  # lambda_l
    vectors: Float[Array, "cohort cohort"]  # columns e_l; the unit axis is u_l = sum_i e_il g_i / length_l
    lengths: Float[Array, "cohort"]  # |v_l| = sqrt(m lambda_l)
    projections: Float[Array, "cohort cohort"]  # c_il = <g_i, u_l>
    is_selected: Bool[Array, "cohort"]  # among the L largest
    is_kept: Bool[Array, "cohort"]  # selected, and not a rounding error


EigenvalueNorm = Literal["l2_selected", "l2_all", "sum_selected", "sum_all", "unit"]
Rounding = Literal["floor", "ceil", "round", "truncate"]
Projection = Literal["orthogonal", "cosine"]
Correction = Literal["per_axis", "whole", "none"]
NORMS: dict[EigenvalueNorm, Callable[[Axes], Array]] = {
    "l2_selected": lambda axes: jnp.sqrt(jnp.sum(jnp.square(axes.eigenvalues) * axes.is_selected)),
    "l2_all": lambda axes: jnp.sqrt(jnp.sum(jnp.square(axes.eigenvalues))),
    "sum_selected": lambda axes: jnp.sum(axes.eigenvalues * axes.is_selected),
    "sum_all": lambda axes: jnp.sum(axes.eigenvalues),
    "unit": lambda axes: axes.eigenvalues,
}
ROUNDINGS: dict[Rounding, Callable[[Array], Array]] = {
    "floor": lambda num_axes: jnp.maximum(1, jnp.floor(num_axes + 1e-9)),
    "ceil": lambda num_axes: jnp.maximum(1, jnp.ceil(num_axes - 1e-9)),
    "round": lambda num_axes: jnp.maximum(1, jnp.round(num_axes)),
    "truncate": jnp.floor,  # the released code's int(); a single client has no axis, hence a zero update
}


def principal_axes(gram: Array, is_present: Array, fraction: float = 0.8, rounding: Rounding = "floor") -> Axes:
    """The m principal axes of the updates, from their Gram matrix K = G G^T.

        K e_l = m lambda_l e_l,   c_il = sqrt(m lambda_l) e_il,   L = rounding(fraction m)

    Shapes: gram [m, m], is_present [m]; absent clients have zero rows, and m counts present clients.
    """
    scaled, vectors = eigh(gram)
    scaled, vectors = jnp.maximum(scaled[::-1], 0), vectors[:, ::-1]
    num_present = jnp.sum(is_present).astype(gram.dtype)
    is_selected = jnp.arange(gram.shape[0]) < ROUNDINGS[rounding](fraction * num_present)
    lengths = jnp.sqrt(scaled)
    is_kept = is_selected & (scaled > _RANK * scaled[0])
    return Axes(scaled / jnp.maximum(num_present, 1), vectors, lengths, vectors * lengths, is_selected, is_kept)


@validate_arguments
def principal_edit(
    fraction: PositiveFraction = 0.8,
    *,
    correction: Correction = "per_axis",
    eig_norm: EigenvalueNorm = "l2_selected",
    projection: Projection = "orthogonal",
    rounding: Rounding = "floor",
) -> GramEdit:
    """FedLD's edit of every update, as coefficients; arguments as in `principal_directions`.

    The sign of an axis does not matter: an axis and its negative give the same projection.
    """

    def edit(gram: Array, is_present: Array) -> Array:
        axes = principal_axes(gram, is_present, fraction, rounding)
        coordinates = _edit_along_axes(axes, jnp.sqrt(jnp.maximum(jnp.diag(gram), 0)), correction, eig_norm, projection)
        return coordinates @ (axes.vectors / jnp.where(axes.is_kept, axes.lengths, 1)).T

    return edit


def _edit_along_axes(
    axes: Axes, norms: Array, correction: Correction, eig_norm: EigenvalueNorm, projection: Projection
) -> Array:
    """[m, m]: client i's edited update along axis l."""
    norms = norms[:, None]
    weights = jnp.where(axes.is_kept, axes.eigenvalues / tree.positive_or_one(NORMS[eig_norm](axes)), 0)
    has_sign = jnp.abs(axes.projections) > _SMALLEST_PROJECTION * norms
    if correction == "per_axis":  # the length of the projection cancels, only its sign remains
        return norms * weights * jnp.sign(axes.projections) * has_sign
    coordinates = weights * axes.projections * has_sign
    if projection == "cosine":
        coordinates = coordinates * axes.lengths / tree.positive_or_one(norms)
    if correction == "none":
        return coordinates
    return coordinates * norms / tree.positive_or_one(jnp.linalg.norm(coordinates, axis=1, keepdims=True))


@validate_arguments
def principal_directions(
    fraction: PositiveFraction = 0.8,
    weighting: WeightingOrName = "samples",
    *,
    correction: Correction = "per_axis",
    eig_norm: EigenvalueNorm = "l2_selected",
    projection: Projection = "orthogonal",
    rounding: Rounding = "floor",
    scope: Scope = "model",
    buffers: Buffers = "weighted_mean",
    stack: StackDtype = "float32",
    warmup_mean_rounds: CountOrZero = 0,
) -> Aggregator:
    """Project each update onto the shared principal axes, rescale it to its norm, and average.

        A = 1/m G G^T = E diag(lambda) E^T,   u_l = G^T e_l / |G^T e_l|,   l = 1..L = fraction m
        g_i^r = sum_l |g_i| / |g'_il|  lambda_l / ||lambda||  g'_il,   g'_il = <g_i, u_l> u_l
        u = sum_i p_i g_i^r  =  sum_l lambda_l/||lambda|| u_l (sum_i p_i |g_i| sgn <g_i, u_l>)

    Axes with an eigenvalue below 1e-12 of the largest are skipped, a client orthogonal to an axis has no vote on it,
    and a zero update stays zero (released: NaN). The result is discontinuous: a vote flips when <g_i, u_l> crosses 0,
    with stack="bfloat16" every few rounds; runs then diverge, by 1 or 2 % of the model. The code's vote on the sign of
    an axis has no effect, since an axis and its negative give the same projection.

    Args:
        fraction: Fraction of axes to keep (default .8, as in the paper).
        weighting: The paper's p_i; released: "uniform".
        correction: "per_axis" (Eq. 7, supplement, code) | "whole" (the text: one factor on the sum) | "none".
        eig_norm: "l2_selected" preserves |g_i^r| = |g_i|, as the paper states; released: "sum_all"; "sum_selected",
            "l2_all", "unit".
        projection: "orthogonal" | "cosine", for correction="whole" or "none".
        rounding: Rounding of L: "floor" (at least 1) | "ceil" | "round" | "truncate" (released: may keep none).
        scope, buffers, stack, warmup_mean_rounds: See `gram_space_mean`. Released, in this order: "tensor",
            "weighted_mean", "float32", 1.

    Returns:
        An aggregator of leaves [cohort, ...] -> [...]; one eigendecomposition of [m, m] in float64, two passes over
        the stack.

    Raises:
        InputError: An option is unknown, or the projection has no effect.

    References:
        Zeng et al., FedLD; official code Zeng-Shuang/FedLD, svd_tools.py.
    """
    if correction == "per_axis":
        refuse_without_effect(principal_directions, "with correction='per_axis'", projection=projection)
    edit = principal_edit(fraction, correction=correction, eig_norm=eig_norm, projection=projection, rounding=rounding)
    return gram_space_mean(
        edit, weighting, scope=scope, buffers=buffers, stack=stack, warmup_mean_rounds=warmup_mean_rounds
    )

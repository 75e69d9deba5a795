"""Projections and quadratic programs on the probability simplex, solved inside the compiled program."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Bool, Float

from fedjax_het import tree
from fedjax_het._internal.decompositions import cho_solve, cholesky
from fedjax_het._internal.target_platform import target_platform
from fedjax_het.types import Array


def project_on_simplex(values: Array, is_free: Array, total: Array | float = 1.0) -> Array:
    """The nearest point with a given sum of nonnegative coordinates:   p_i = max(v_i - theta, 0),   sum_i p_i = total

    Args:
        values: v, [n].
        is_free: [n]; the other coordinates are 0 and do not count.
        total: The sum, at least 0.

    Returns:
        p, [n]; zeros if no coordinate is free.

    References:
        Duchi et al., Efficient Projections onto the l1-Ball for Learning in High Dimensions, ICML 2008.
    """
    ranked = -jnp.sort(jnp.where(is_free, -values, jnp.inf))
    place = jnp.arange(1, len(values) + 1)
    is_ranked = place <= jnp.sum(is_free)
    excess = (jnp.cumsum(jnp.where(is_ranked, ranked, 0)) - total) / place
    num_positive = jnp.sum(is_ranked & (ranked > excess))
    return jnp.where(is_free, jnp.maximum(values - excess[jnp.maximum(num_positive, 1) - 1], 0), 0)


class _Search(NamedTuple):
    point: Float[Array, "cohort"]  # feasible, never worse than the previous point
    support: Bool[Array, "cohort"]  # the coordinates that may move; the others are at a bound
    is_minimal: Array  # the point is the minimum over its support's face
    is_done: Array
    num_steps: Array


def minimize_on_simplex(matrix: Array, start: Array, upper: Array, lower: Array | float = 0.0) -> Array:
    """argmin a^T P a over lower <= a <= upper, sum a = 1, by Wolfe's active set from a corner of this polytope.

    Exact to rounding, in about as many steps of m^3 / 3 as coordinates leave their bounds. Among several minima, one
    near the corner is found, and the corner itself if it is a minimum. If a step fails, the best point so far is
    returned, which is at least as good as the corner.

    Args:
        matrix: P, [m, m], positive semi-definite.
        start: [], the index of the coordinate that is largest in the corner; the others then follow in order.
        upper: [m], infinity without a bound, 0 for coordinates that are left out; their sum is at least 1.
        lower: [m], at least 0; their sum is at most 1.

    Returns:
        a, [m].

    References:
        Wolfe, Finding the nearest point in a polytope, Mathematical Programming 1976.
    """
    size = matrix.shape[0]
    upper = jnp.asarray(upper, matrix.dtype)
    lower = jnp.broadcast_to(jnp.asarray(lower, matrix.dtype), upper.shape)
    corner, support = _fill(start, lower, upper)
    begin = _Search(corner, support, jnp.array(True), jnp.array(False), jnp.zeros((), jnp.int32))
    end = jax.lax.while_loop(
        lambda search: ~search.is_done & (search.num_steps < 10 * size + 10),
        lambda search: _step(matrix, lower, upper, search),
        begin,
    )
    return _exchange_pairs(matrix, lower, upper, end.point)


def _exchange_pairs(matrix: Array, lower: Array, upper: Array, point: Array) -> Array:
    """Move mass between two coordinates as long as that decreases the objective.

    A minimum is left as it is. The search above can end before one where many coordinates are at bounds.
    """
    negligible = 1e6 * jnp.finfo(matrix.dtype).eps * jnp.max(jnp.abs(matrix))

    def find_pair(point: Array) -> tuple[Array, Array, Array]:
        gradient = matrix @ point
        falling = jnp.argmax(jnp.where(point > lower, gradient, -jnp.inf))
        rising = jnp.argmin(jnp.where(point < upper, gradient, jnp.inf))
        is_pair = (point[falling] > lower[falling]) & (point[rising] < upper[rising])
        return falling, rising, jnp.where(is_pair, gradient[falling] - gradient[rising], 0)

    def exchange(search: tuple[Array, Array]) -> tuple[Array, Array]:
        point, number = search
        i, j, gain = find_pair(point)
        curvature = matrix[i, i] + matrix[j, j] - 2 * matrix[i, j]
        largest = jnp.minimum(point[i] - lower[i], upper[j] - point[j])
        step = jnp.where(curvature > 0, jnp.minimum(gain / tree.positive_or_one(curvature), largest), largest)
        return jnp.clip(point.at[i].add(-step).at[j].add(step), lower, upper), number + 1

    def is_better(search: tuple[Array, Array]) -> Array:
        return (find_pair(search[0])[2] > negligible) & (search[1] < 10000 * len(point))

    return jax.lax.while_loop(is_better, exchange, (point, jnp.zeros((), jnp.int32)))[0]


def _fill(start: Array, lower: Array, upper: Array) -> tuple[Array, Array]:
    """(The corner that fills coordinates one by one up to their upper bounds, the last one to be filled, one-hot)."""
    place = jnp.arange(len(lower))
    order = jnp.argsort(jnp.where(place == start, -1, place))
    room = jnp.minimum(upper, 1) - lower
    missing, filled = 1 - jnp.sum(lower), jnp.cumsum(room[order])
    last = jnp.minimum(jnp.sum(filled < missing), len(lower) - 1)
    added = jnp.clip(missing - (filled - room[order]), 0, room[order])
    return lower.at[order].add(added), place == order[last]


def _step(matrix: Array, lower: Array, upper: Array, search: _Search) -> _Search:
    """Add the steepest coordinate to the support of a minimal point, and move to the minimum over the support's affine
    hull, or as far towards it as the bounds allow, where a coordinate leaves the support."""
    point = search.point
    entering = search.is_minimal & _steepest(matrix, lower, upper, search)
    support = search.support | entering
    target = _affine_minimum(matrix, support, point)
    is_low, is_high = target <= lower, target >= upper
    is_out = support & (is_low | is_high) & (jnp.sum(support) > 1)
    bound = jnp.where(is_low, lower, upper)
    length = jnp.abs(point - bound)
    ratio = length / jnp.where(is_out, jnp.abs(point - target), 1)
    reach = jnp.where(is_out & (length > 0), ratio, jnp.where(is_out, 0, jnp.inf))
    step = jnp.minimum(jnp.min(reach), 1)
    kept = support & (reach > step)
    moved = jnp.where(kept, jnp.clip(point + step * (target - point), lower, upper), jnp.where(support, bound, point))
    fixed = jnp.sum(jnp.where(kept, 0, moved))
    free = jnp.sum(jnp.where(kept, moved, 0))
    scaled = jnp.where(kept, moved / tree.positive_or_one(free / tree.positive_or_one(1 - fixed)), moved)
    is_stuck = jnp.any(entering & is_out & (length == 0)) | ~jnp.all(jnp.isfinite(target))
    is_done = (search.is_minimal & ~jnp.any(entering)) | is_stuck
    return _Search(
        jnp.where(is_done, point, scaled),
        jnp.where(is_done, search.support, kept),
        ~jnp.any(is_out),
        is_done,
        search.num_steps + 1,
    )


def _steepest(matrix: Array, lower: Array, upper: Array, search: _Search) -> Array:
    """[m] bool: the coordinate of steepest descent, if the objective decreases by more than rounding."""
    gradient = matrix @ search.point
    value = jnp.sum(jnp.where(search.support, gradient, 0)) / jnp.maximum(jnp.sum(search.support), 1)
    rounding = 8 * jnp.finfo(matrix.dtype).eps * (jnp.abs(matrix) @ search.point + jnp.abs(value))
    inward = jnp.where(search.point > lower, -1, 1)  # the direction in which a coordinate at a bound may move
    is_movable = ~search.support & (lower < upper)
    slope = jnp.where(is_movable, inward * (gradient - value) + rounding, jnp.inf)
    is_minimal = (slope == jnp.min(slope)) & (slope < 0)
    return is_minimal & (jnp.cumsum(is_minimal) == 1)


def _affine_minimum(matrix: Array, support: Array, point: Array) -> Array:
    """argmin a^T P a over sum a = 1 and a = point off the support; the constant added to P changes no minimum there."""
    shift = jnp.max(jnp.where(support, jnp.diagonal(matrix), 0))
    shifted = matrix + tree.positive_or_one(shift)
    inside = support[:, None] & support
    system = jnp.where(inside, shifted, jnp.eye(matrix.shape[0], dtype=matrix.dtype))
    fixed = jnp.where(support, 0, point)
    factor = _factorize(system)
    ones = jnp.where(support, cho_solve(factor, support.astype(matrix.dtype)), 0)
    pulled = jnp.where(support, cho_solve(factor, shifted @ fixed), 0)
    return ones / jnp.sum(ones) * (1 - jnp.sum(fixed) + jnp.sum(pulled)) - pulled + fixed


def _factorize(matrix: Array) -> Array:
    """The Cholesky factor of a positive definite matrix, for `cho_solve`."""
    if target_platform() != "tpu":
        return cholesky(matrix)
    # On several TPU chips, XLA does not support its own Cholesky decomposition in float64.
    place = jnp.arange(len(matrix))

    def add_column(j: Array, lower: Array) -> Array:
        column = matrix[:, j] - lower @ lower[j]
        return lower.at[:, j].set(jnp.where(place >= j, column / jnp.sqrt(column[j]), 0))

    return jax.lax.fori_loop(0, len(matrix), add_column, jnp.zeros_like(matrix))

"""Quadratic programs on the probability simplex, solved inside the compiled program."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.scipy.linalg import cho_factor, cho_solve
from jaxtyping import Bool, Float

from fedjax_het import tree
from fedjax_het._internal.target_platform import target_platform
from fedjax_het.types import Array


class _Search(NamedTuple):
    point: Float[Array, "cohort"]  # feasible, never worse than the previous point
    support: Bool[Array, "cohort"]  # the coordinates that may be nonzero
    is_minimal: Array  # the point is the minimum over its support's face
    is_done: Array
    num_steps: Array


def minimize_on_simplex(matrix: Array, start: Array, is_allowed: Array) -> Array:
    """argmin a^T P a over a >= 0, sum a = 1, a_j = 0 where not allowed, by Wolfe's active set from the corner `start`.

    Exact to rounding, in about as many steps of m^3 / 3 as the solution has nonzero entries. Among several minima, one
    near the corner is found, and the corner itself if it is a minimum. If a step fails, the best point so far is
    returned, which is at least as good as the corner.

    Args:
        matrix: P, [m, m], positive semi-definite.
        start: [], the index of a corner.
        is_allowed: [m].

    Returns:
        a, [m].

    References:
        Wolfe, Finding the nearest point in a polytope, Mathematical Programming 1976.
    """
    size = matrix.shape[0]
    corner = jnp.arange(size) == start
    begin = _Search(corner.astype(matrix.dtype), corner, jnp.array(True), jnp.array(False), jnp.zeros((), jnp.int32))
    end = jax.lax.while_loop(
        lambda search: ~search.is_done & (search.num_steps < 10 * size + 10),
        lambda search: _step(matrix, is_allowed, search),
        begin,
    )
    return end.point


def _step(matrix: Array, is_allowed: Array, search: _Search) -> _Search:
    """Add the steepest coordinate to the support of a minimal point, and move to the minimum over the support's affine
    hull, or as far towards it as the simplex allows, where a coordinate leaves the support."""
    point = search.point
    entering = search.is_minimal & _steepest(matrix, search, is_allowed)
    support = search.support | entering
    target = _affine_minimum(matrix, support)
    is_out = support & (target <= 0)
    reach = jnp.where(is_out & (point > 0), point / jnp.where(is_out, point - target, 1), jnp.where(is_out, 0, jnp.inf))
    step = jnp.minimum(jnp.min(reach), 1)
    kept = support & (reach > step)
    moved = jnp.where(kept, jnp.maximum(point + step * (target - point), 0), 0)
    is_stuck = jnp.any(entering & is_out) | ~jnp.all(jnp.isfinite(target))
    is_done = (search.is_minimal & ~jnp.any(entering)) | is_stuck
    return _Search(
        jnp.where(is_done, point, moved / jnp.sum(moved)),
        jnp.where(is_done, search.support, kept),
        ~jnp.any(is_out),
        is_done,
        search.num_steps + 1,
    )


def _steepest(matrix: Array, search: _Search, is_allowed: Array) -> Array:
    """[m] bool: the coordinate of steepest descent, if the objective decreases by more than rounding."""
    gradient = matrix @ search.point
    value = gradient @ search.point
    rounding = 8 * jnp.finfo(matrix.dtype).eps * (jnp.abs(matrix) @ search.point + value)
    slope = jnp.where(is_allowed & ~search.support, gradient - value + rounding, jnp.inf)
    is_minimal = (slope == jnp.min(slope)) & (slope < 0)
    return is_minimal & (jnp.cumsum(is_minimal) == 1)


def _affine_minimum(matrix: Array, support: Array) -> Array:
    """argmin a^T P a over sum a = 1 and a = 0 off the support; the constant added to P changes no minimum there."""
    shift = jnp.max(jnp.where(support, jnp.diagonal(matrix), 0))
    shifted = matrix + tree.positive_or_one(shift)
    inside = support[:, None] & support
    system = jnp.where(inside, shifted, jnp.eye(matrix.shape[0], dtype=matrix.dtype))
    solution = jnp.where(support, _solve(system, support.astype(matrix.dtype)), 0)
    return solution / jnp.sum(solution)


def _solve(matrix: Array, vector: Array) -> Array:
    """The solution of matrix x = vector, for a positive definite matrix."""
    if target_platform() != "tpu":
        return cho_solve(cho_factor(matrix), vector)
    # On several TPU chips, XLA does not support its own Cholesky decomposition in float64.
    place = jnp.arange(len(matrix))

    def add_column(j: Array, lower: Array) -> Array:
        column = matrix[:, j] - lower @ lower[j]
        return lower.at[:, j].set(jnp.where(place >= j, column / jnp.sqrt(column[j]), 0))

    lower = jax.lax.fori_loop(0, len(matrix), add_column, jnp.zeros_like(matrix))
    return cho_solve((lower, True), vector)

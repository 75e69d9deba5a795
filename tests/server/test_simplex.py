import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fedjax_het._internal.float64 import in_double
from fedjax_het._internal.target_platform import tracing_for
from fedjax_het.server.simplex import minimize_on_simplex, project_on_simplex

SIZE = 5
EVERYONE = np.ones(SIZE, bool)


def make_solver(platform):
    def solve(matrix, start, is_allowed):
        with tracing_for(platform):
            return minimize_on_simplex(matrix, start, jnp.where(is_allowed, jnp.inf, 0))

    return jax.jit(in_double(solve))


@pytest.fixture(scope="module", params=["cpu", "tpu"])
def solve(request):
    """The search as it is traced for a platform; TPUs have a decomposition of their own."""
    return make_solver(request.param)


def brute_force_minimum(matrix):
    """By trying every support: the best of the stationary points that lie in the simplex."""
    best, value = None, np.inf
    for count in range(1, len(matrix) + 1):
        for support in map(list, itertools.combinations(range(len(matrix)), count)):
            bordered = np.block([[matrix[np.ix_(support, support)], np.ones((count, 1))], [np.ones(count), 0]])
            part = np.linalg.lstsq(bordered, np.append(np.zeros(count), 1), rcond=None)[0][:count]
            point = np.zeros(len(matrix))
            point[support] = part
            if np.all(part > -1e-12) and abs(part.sum() - 1) < 1e-9 and point @ matrix @ point < value:
                best, value = point, point @ matrix @ point
    return best


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10_000), ridge=st.sampled_from([1e-6, 1e-2, 1.0]), start=st.integers(0, SIZE - 1))
def test_the_minimum_is_found_from_any_corner(solve, seed, ridge, start):
    rng = np.random.default_rng(seed)
    half = rng.normal(size=(SIZE, 3))
    matrix = half @ half.T + ridge * np.diag(rng.uniform(0.1, 1, SIZE))
    with jax.enable_x64(True):
        point = np.asarray(solve(matrix, start, EVERYONE))
    assert np.all(point >= 0) and point.sum() == pytest.approx(1, abs=1e-12)
    gradient = matrix @ point
    assert gradient @ point - gradient.min() < 1e-12 * np.abs(matrix).max()
    np.testing.assert_allclose(point, brute_force_minimum(matrix), atol=1e-8)


def test_a_corner_that_is_one_of_several_minima_is_kept(solve):
    """Client 0 lies between the others, at no cost: any mixture of opposite ones would do as well."""
    points = np.array([[0.0, 0], [1, 0], [-1, 0], [0, 1], [0, -1]])
    for start in range(SIZE):
        moved = points - points[start]
        np.testing.assert_array_equal(solve(moved @ moved.T, start, EVERYONE), np.arange(SIZE) == start)


def test_with_equal_costs_the_starting_corner_is_kept(solve):
    np.testing.assert_array_equal(solve(np.zeros((SIZE, SIZE)), 2, EVERYONE), np.arange(SIZE) == 2)


def test_entries_that_are_not_allowed_are_zero(solve):
    is_allowed = np.array([True, True, False, True, False])
    np.testing.assert_allclose(solve(np.eye(SIZE), 0, is_allowed), is_allowed / 3, atol=1e-7)


def test_nonfinite_costs_return_the_starting_corner(solve):
    np.testing.assert_array_equal(solve(np.full((SIZE, SIZE), np.nan), 1, EVERYONE), np.arange(SIZE) == 1)


def test_the_search_works_under_vmap(solve):
    rng = np.random.default_rng(1)
    halves = rng.normal(size=(3, SIZE, SIZE)).astype(np.float32)
    matrices = jnp.asarray(halves @ halves.swapaxes(1, 2))
    together = jax.jit(jax.vmap(solve, in_axes=(0, None, None)))(matrices, 0, EVERYONE)
    for matrix, point in zip(matrices, together, strict=True):
        np.testing.assert_allclose(point, brute_force_minimum(np.asarray(matrix, np.float64)), atol=1e-6)


# ---- with bounds, and projections ------------------------------------------------------------------------------------
@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10_000), width=st.sampled_from([0.0, 0.05, 0.2, 0.6, 1.0]), rank=st.sampled_from([1, 3, SIZE])
)
@example(seed=270, width=0.6, rank=SIZE)  # the active set alone ends before the minimum
@example(seed=129, width=0.6, rank=3)  # which thousands of exchanges then reach
def test_the_minimum_within_bounds_has_no_feasible_descent(bounded, seed, width, rank):
    """At a minimum, mass cannot move from a coordinate above its lower bound to one below its upper bound at a gain."""
    rng = np.random.default_rng(seed)
    half, centre = rng.normal(size=(SIZE, rank)), rng.dirichlet(np.ones(SIZE))
    matrix, lower, upper = half @ half.T, np.maximum(centre - width, 0), np.minimum(centre + width, 1)
    with jax.enable_x64(True):
        point = np.asarray(bounded(matrix, rng.integers(SIZE), upper, lower))
    assert np.all(point >= lower - 1e-12) and np.all(point <= upper + 1e-12)
    assert point.sum() == pytest.approx(1, abs=1e-12)
    gradient = matrix @ point
    can_fall, can_rise = point > lower + 1e-9, point < upper - 1e-9
    if can_fall.any() and can_rise.any():
        assert gradient[can_fall].max() - gradient[can_rise].min() < 1e-9 * np.abs(matrix).max()


@pytest.fixture(scope="module")
def bounded():
    return jax.jit(in_double(minimize_on_simplex))


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10_000), total=st.sampled_from([0.25, 1.0]))
def test_a_projection_on_the_simplex_keeps_the_order_and_is_a_projection(seed, total):
    rng = np.random.default_rng(seed)
    values, is_free = rng.normal(size=8), rng.random(8) < 0.7
    is_free[0] = True
    point = np.asarray(project_on_simplex(jnp.asarray(values), jnp.asarray(is_free), total))
    assert np.all(point >= 0) and not point[~is_free].any() and point.sum() == pytest.approx(total, abs=1e-5)
    np.testing.assert_allclose(project_on_simplex(jnp.asarray(point), jnp.asarray(is_free), total), point, atol=1e-6)
    own = values[is_free]
    assert np.all(np.diff(point[is_free][np.argsort(own)]) >= -1e-6)
    theta = (own - point[is_free])[point[is_free] > 0]
    np.testing.assert_allclose(theta, theta[0], atol=1e-5)
    assert np.all(own[point[is_free] == 0] <= theta[0] + 1e-5)
    assert not np.asarray(project_on_simplex(jnp.asarray(values), jnp.zeros(8, bool), total)).any()

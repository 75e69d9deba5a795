"""The check for finite numbers, with and without the kernel."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_het import tree
from fedjax_het._internal import finite
from tests.compilation import choose_kernel

SIZES = (0, 1, 7, 8, 9, 100)


@pytest.fixture(params=["kernel", "no kernel"], autouse=True)
def implementation(request, monkeypatch):
    choose_kernel(request.param, finite, monkeypatch)


def make_arrays(value: float, place: tuple[int, int] | None) -> list[np.ndarray]:
    arrays = [np.full(size, np.finfo(np.float32).max, np.float32) for size in SIZES]
    if place:
        arrays[place[0]][place[1]] = value
    return arrays


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_each_entry_counts(value):
    check = jax.jit(lambda arrays: tree.is_finite(arrays))
    assert check(make_arrays(0.0, None))
    places = [(array, entry) for array, size in enumerate(SIZES) for entry in range(size)]
    assert not any(check(make_arrays(value, place)) for place in places)


def test_subnormal_numbers_zeros_and_integers_are_finite():
    assert tree.is_finite((jnp.array([1e-45, 0.0, -0.0]), jnp.array([-1, 2**31 - 1])))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_dtypes(dtype):
    leaves = jnp.ones(3, dtype), jnp.ones((2, 2))
    assert tree.is_finite(leaves) and not tree.is_finite((leaves[0].at[1].set(jnp.nan), leaves[1]))


def test_trees_under_vmap_are_checked_one_by_one():
    stack, shared = jnp.ones((3, 4, 5)).at[1, 2, 3].set(jnp.inf), jnp.ones(2)
    check = jax.vmap(lambda own, shared: tree.is_finite((own, shared)), (0, None))
    np.testing.assert_array_equal(check(stack, shared), [True, False, True])
    assert not check(stack, shared.at[0].set(jnp.nan)).any()

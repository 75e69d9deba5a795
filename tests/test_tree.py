"""Arithmetic on pytrees."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedjax_het import tree
from fedjax_het._internal.target_platform import tracing_for

names = st.sampled_from("abcd")
variables = st.dictionaries(names, st.dictionaries(names, st.integers(0, 9), min_size=1), min_size=1)


@given(variables, st.sets(st.tuples(names, names)))
def test_partition_and_merge_are_inverse(values, chosen):
    rest, picked = tree.partition(values, lambda path: tuple(path.split("/")) in chosen)
    assert tree.merge(rest, picked) == values
    assert set(tree.paths(picked)) == {p for p in tree.paths(values) if tuple(p.split("/")) in chosen}


def test_the_gradient_of_a_norm_at_zero_is_zero():
    gradient = jax.grad(lambda x: tree.norm({"a": x, "b": 2 * x}))(jnp.zeros(3))
    np.testing.assert_array_equal(gradient, np.zeros(3))


def test_putting_taken_rows_back_is_the_identity():
    stack = {"x": jnp.arange(12.0).reshape(4, 3), "n": jnp.arange(4)}
    index = jnp.array([2, 0])
    assert jax.tree.all(jax.tree.map(jnp.array_equal, tree.put(stack, index, tree.take(stack, index)), stack))


@pytest.mark.extended
def test_large_rows_are_taken_one_by_one_on_a_tpu():
    stack, index = {"large": jnp.arange(3.0 * 2**19).reshape(3, -1), "small": jnp.arange(3.0)}, jnp.array([2, 0])
    usual, num_gathers = tree.take(stack, index), str(jax.make_jaxpr(tree.take)(stack, index)).count("gather[")
    with tracing_for("tpu"):
        assert str(jax.make_jaxpr(tree.take)(stack, index)).count("gather[") == num_gathers - 1
        assert jax.tree.all(jax.tree.map(jnp.array_equal, tree.take(stack, index), usual))


def test_a_weighted_sum_leaves_no_copy_of_the_stack():
    stack, weights = {"x": jnp.ones((50, 1000))}, jnp.arange(50.0)
    np.testing.assert_allclose(tree.weighted_sum(stack, weights)["x"], np.full(1000, 1225.0))
    memory = jax.jit(tree.weighted_sum).lower(stack, weights).compile().memory_analysis()
    assert memory.temp_size_in_bytes < 1000 * 4 * 5


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int32", "bool"])
@pytest.mark.parametrize("shape", [(5, 4, 3), (5,)])
def test_a_sum_of_rows_is_that_of_jnp(shape, dtype):
    stack = jnp.arange(np.prod(shape)).reshape(shape).astype(dtype)
    total, expected = tree.sum_rows(stack), jnp.sum(stack, axis=0)
    assert total.dtype == expected.dtype
    np.testing.assert_array_equal(total, expected)


def test_where_selects_rows():
    yes, no = {"x": jnp.ones((3, 2)), "n": jnp.ones(3)}, {"x": jnp.zeros((3, 2)), "n": jnp.zeros(3)}
    out = tree.where(jnp.array([True, False, True]), yes, no)
    np.testing.assert_array_equal(out["x"][:, 0], [1, 0, 1])
    np.testing.assert_array_equal(out["n"], [1, 0, 1])


@pytest.mark.parametrize(("value", "expected"), [(1.0, True), (np.nan, False), (np.inf, False)])
def test_is_finite_checks_every_floating_leaf(value, expected):
    leaves = {"a": jnp.ones(3), "b": jnp.array([0.0, value]), "n": jnp.arange(3)}
    assert bool(tree.is_finite(leaves)) is expected


def test_bytes_and_entries_are_summed_over_leaves():
    leaves = {"a": jnp.ones((2, 3), jnp.float32), "n": jnp.ones(5, jnp.int8)}
    assert tree.num_bytes(leaves) == 29
    assert tree.num_entries(leaves) == 11

"""Programs that differ in numbers alone are one program of which of them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedjax_het._internal.float64 import in_double
from fedjax_het.alike import as_one
from fedjax_het.errors import Unlike

X = jnp.linspace(-1, 2, 6)


def straight(a):
    return lambda x: {"out": a * jnp.sin(x) + (1 - a), "alone": jnp.float32(a)}


def looped(a):
    return lambda x: jax.lax.fori_loop(0, 5, lambda i, y: y * a + i, x)


def scanned(a):
    return lambda x: jax.lax.scan(lambda carry, y: (carry * a + y, carry - a), jnp.zeros(()), x)


def until(a):
    return lambda x: jax.lax.while_loop(lambda y: jnp.sum(y) < 10 * a, lambda y: y + a, x)


def branched(a):
    return lambda x: jax.lax.cond(jnp.sum(x) > 3, lambda y: y * a, lambda y: y / a, x)


def called(a):
    return lambda x: jax.jit(jax.checkpoint(lambda y: jax.nn.relu(y - a)))(x)


def differentiated(a):
    return jax.grad(lambda x: jnp.sum(jax.nn.relu(x - a) ** 2 * a))


def in_float64(a):
    return lambda x: in_double(lambda y: jnp.floor(y.astype(float) * 0 + a * 10).astype(jnp.float32))(x)


def mapped(a):
    return lambda x: jax.lax.map(jax.vmap(lambda y: y**2 + a), x.reshape(3, 2))


def drawn(a):
    return lambda x: a * jax.random.normal(jax.random.key(0), x.shape)


def with_table(a):
    return lambda x: x * jnp.asarray(np.linspace(a, 1, 6, dtype=np.float32))


FUNCTIONS = [
    straight, looped, scanned, until, branched, called, differentiated, in_float64, mapped, drawn, with_table
]  # fmt: skip


def close(one, other):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-7), one, other)


@pytest.mark.parametrize("make", FUNCTIONS, ids=lambda make: make.__name__)
def test_each_is_found_again(make):
    numbers = [0.7, 0.25, 0.3]
    functions = [make(a) for a in numbers]
    together = as_one(functions)
    batched = jax.jit(jax.vmap(together, in_axes=(0, None)))(jnp.arange(3), X)
    for i, function in enumerate(functions):
        expected = jax.jit(function)(X)
        close(jax.jit(together)(jnp.int32(i), X), expected)
        close(jax.tree.map(lambda x, i=i: x[i], batched), expected)


def test_numbers_keep_the_precision_they_had():
    """0.7 * 10 is 7.000000000000001 in Python and 6.9999998 from a float32: floor would tell."""
    out = jax.vmap(as_one([in_float64(0.7), in_float64(0.3)]), in_axes=(0, None))(jnp.arange(2), X)
    assert np.asarray(out)[:, 0].tolist() == [np.floor(0.7 * 10), np.floor(0.3 * 10)]


@pytest.mark.parametrize(
    ("functions", "groups"),
    [
        ([straight(0.1), looped(0.1), straight(0.2)], [[0, 2], [1]]),
        ([lambda x: x[:2], lambda x: x[:3]], [[0], [1]]),
        ([lambda x: x * 2.0, lambda x: x * jnp.float32(2), lambda x: x + 2.0], [[0, 1], [2]]),
        ([lambda x: jnp.sum(x) * x, lambda x: jnp.sum(x) * (jnp.sum(x) * 1)], [[0], [1]]),
        ([lambda x: x.reshape(2, 3).sum(0), lambda x: x.reshape(2, 3).sum(1)], [[0], [1]]),
        ([lambda x: (x - 1.0) * x, lambda x: (x - 1.0) * (x - 1.0)], [[0], [1]]),
    ],
)
def test_more_than_numbers_is_told_apart(functions, groups):
    with pytest.raises(Unlike) as error:
        as_one(functions)(jnp.int32(0), X)
    assert error.value.groups == groups


@given(st.lists(st.floats(-4, 4, width=32), min_size=1, max_size=4))
@settings(max_examples=20, deadline=None)
def test_any_numbers(numbers):
    functions = [straight(a) for a in numbers]
    for i, function in enumerate(functions):
        close(as_one(functions)(jnp.int32(i), X), function(X))


def test_what_is_equal_is_not_looked_up():
    together = as_one([lambda x: x * 3.0 + 0.1, lambda x: x * 3.0 + 0.2])
    text = str(jax.make_jaxpr(together)(jnp.int32(0), X))
    assert "3.0:f32" in text and text.count("gather") + text.count("dynamic_slice") == 1


def test_over_devices():
    mesh = jax.sharding.Mesh(np.asarray(jax.devices()[:1]), ("clients",))
    spec = jax.sharding.PartitionSpec("clients")

    def make(a):
        return lambda x: jax.shard_map(lambda y: y * a, mesh=mesh, in_specs=spec, out_specs=spec)(x)

    out = jax.jit(jax.vmap(as_one([make(0.1), make(0.2)]), in_axes=(0, None)))(jnp.arange(2), X)
    close(out, jnp.stack([X * 0.1, X * 0.2]))

"""Pooling: the values and the gradients of Flax's and PyTorch's, ties and NaN included."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from hypothesis import given, settings
from hypothesis import strategies as st

from fedjax_het.models._layers import Conv, avg_pool, max_pool
from fedjax_het.models._norms import BatchNorm

KEY = jax.random.key(0)
STATS = {"batch_stats": {"mean": jnp.zeros(4), "var": jnp.ones(4)}}


POOLS = {  # ours, Flax's
    "apart": (max_pool, partial(nn.max_pool, window_shape=(2, 2), strides=(2, 2))),
    "overlapping": (
        partial(max_pool, window=3, strides=2, padding=1),
        partial(nn.max_pool, window_shape=(3, 3), strides=(2, 2), padding=((1, 1), (1, 1))),
    ),
    "by two and three": (
        partial(max_pool, window=(2, 3), strides=1),
        partial(nn.max_pool, window_shape=(2, 3), strides=(1, 1)),
    ),
}


@partial(jax.jit, static_argnums=1)
def gradients_of_max_pool(x, kind):
    def weighted(x, pool):
        y = pool(x)
        return jnp.sum(jnp.arange(1.0, y.size + 1).reshape(y.shape) * y)

    return [jax.grad(weighted)(x, pool) for pool in POOLS[kind]]


@pytest.mark.parametrize("size", [(4, 6), (5, 7)])
def test_pools_without_overlap_match_flax(size):
    x = jax.random.normal(KEY, (2, *size, 3))
    np.testing.assert_array_equal(max_pool(x), nn.max_pool(x, (2, 2), (2, 2)))
    np.testing.assert_allclose(avg_pool(x), nn.avg_pool(x, (2, 2), (2, 2)), rtol=1e-6)


def test_windows_of_one_pixel_change_nothing():
    x = jax.random.normal(KEY, (2, 3, 4, 5))
    np.testing.assert_array_equal(max_pool(x, 1), x)
    np.testing.assert_array_equal(jax.grad(lambda x: jnp.sum(max_pool(x, 1)))(x), jnp.ones_like(x))


def test_pools_with_overlap_or_padding_match_flax():
    x = jax.random.normal(KEY, (2, 7, 8, 3))
    pads = ((1, 1), (1, 1))
    np.testing.assert_array_equal(max_pool(x, 3, 2, 1), nn.max_pool(x, (3, 3), (2, 2), pads))
    np.testing.assert_array_equal(avg_pool(x, (2, 3), 1, "SAME"), nn.avg_pool(x, (2, 3), (1, 1), "SAME"))


@pytest.mark.extended
@pytest.mark.parametrize("kind", POOLS)
@settings(max_examples=20, deadline=None)
@given(values=st.lists(st.integers(-2, 2), min_size=16, max_size=16))
def test_max_pool_passes_its_gradient_to_the_first_of_equal_entries(kind, values):
    x = jnp.array(values, jnp.float32).reshape(1, 4, 4, 1)
    found, expected = gradients_of_max_pool(x, kind)
    np.testing.assert_array_equal(found, expected)
    num_windows = POOLS[kind][0](x).size
    assert found.sum() == num_windows * (num_windows + 1) / 2


@pytest.mark.extended
@pytest.mark.parametrize("kind", POOLS)
def test_max_pool_supports_forward_mode_and_vmap(kind):
    pool, theirs = POOLS[kind]
    x, along = jax.random.normal(KEY, (2, 3, 1, 7, 6, 2))
    ours = jax.vmap(lambda x, along: jax.jvp(pool, (x,), (along,)))(x, along)
    for found, expected in zip(ours, jax.vmap(lambda x, along: jax.jvp(theirs, (x,), (along,)))(x, along), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-6)


@pytest.mark.extended
def test_the_compiled_gradient_of_max_pool_is_complete():
    """With jnp.max as the pool, a third of this gradient is missing once compiled."""
    kernel = jax.random.normal(jax.random.key(1), (5, 5, 3, 4))
    inputs = jax.random.normal(KEY, (3, 16, 16, 3))
    mask = jnp.array([1.0, 1, 0])

    def loss(kernel, pool):
        x = Conv(4, 5, padding="VALID", use_bias=False, impl="lax").apply({"params": {"kernel": kernel}}, inputs)
        y, _ = BatchNorm(use_scale=False, use_bias=False).apply(STATS, x, mask, True, mutable=["batch_stats"])
        return jnp.sum(jnp.sin(pool(y))[:2])

    gradient = jax.grad(loss)
    compiled = jax.jit(gradient, static_argnums=1)
    np.testing.assert_allclose(compiled(kernel, max_pool), gradient(kernel, max_pool), rtol=1e-3, atol=1e-3)


@pytest.mark.extended
def test_max_pool_propagates_nan_from_every_entry():
    for entry in np.ndindex(2, 2):
        x = jnp.zeros((1, 2, 2, 1)).at[0, *entry].set(jnp.nan)
        assert jnp.isnan(max_pool(x)).all() and jnp.isnan(max_pool(x, 3, 1, 1)).all()

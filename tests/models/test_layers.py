import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from hypothesis import given, settings
from hypothesis import strategies as st

from fedjax_het.errors import InputError
from fedjax_het.models.layers import Conv, avg_pool, max_pool
from fedjax_het.models.norms import BatchNorm

KEY = jax.random.key(0)
CASES = [
    ((6, 5), 3, 5, 1, "SAME"),
    ((6, 5), 16, 4, 1, "VALID"),
    ((8, 7), 1, 3, 2, "SAME"),
    ((7, 11), 17, 3, 2, "VALID"),
    ((6, 6), 2, (2, 3), (1, 2), ((1, 0), (2, 1))),
    ((5, 6), 20, 1, 2, 0),
    ((7, 7), 18, 4, 3, 2),
]
STATS = {"batch_stats": {"mean": jnp.zeros(4), "var": jnp.ones(4)}}
WEIGHTS = jnp.arange(1.0, 5.0).reshape(1, 2, 2, 1)


@jax.jit
def gradients_of_max_pool(x):
    pools = (max_pool, lambda x: nn.max_pool(x, (2, 2), (2, 2)))
    return [jax.grad(lambda x, pool=pool: jnp.sum(WEIGHTS * pool(x)))(x) for pool in pools]


def values_and_gradients(lowering, case, dtype):
    size, channels, kernel, strides, padding = case
    layer = Conv(4, kernel, strides, padding, lowering=lowering)
    random = np.random.default_rng(0)
    x = random.normal(size=(2, *size, channels)).astype(dtype)
    shapes = {"kernel": (*np.broadcast_to(kernel, 2), channels, 4), "bias": (4,)}
    params = {name: random.normal(size=shape).astype(dtype) for name, shape in shapes.items()}

    @jax.jit
    def run(params, x):
        y, pull_back = jax.vjp(lambda params, x: layer.apply({"params": params}, x), params, x)
        return y, pull_back(jnp.sin(y))

    return run(params, x)


@pytest.mark.parametrize(("dtype", "tolerance"), [("float64", 1e-12), ("float32", 1e-5)])
@pytest.mark.parametrize("case", CASES)
def test_patches_give_what_lax_gives(case, dtype, tolerance):
    with jax.enable_x64(dtype == "float64"):
        expected = values_and_gradients("lax", case, dtype)
        found = values_and_gradients("patches", case, dtype)
    scale = max(np.abs(leaf).max() for leaf in jax.tree.leaves(expected))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance * scale), found, expected)


@pytest.mark.parametrize("lowering", ["lax", "patches", "auto"])
def test_leaves_and_values_are_those_of_flax(lowering):
    x = jax.random.normal(KEY, (2, 6, 6, 3))
    variables = nn.Conv(4, (3, 3)).init(KEY, x)
    ours = Conv(4, lowering=lowering)
    assert jax.tree.map(jnp.shape, ours.init(KEY, x)) == jax.tree.map(jnp.shape, variables)
    np.testing.assert_allclose(ours.apply(variables, x), nn.Conv(4, (3, 3)).apply(variables, x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("size", [(4, 6), (5, 7)])
def test_pools_without_overlap_give_what_flax_gives(size):
    x = jax.random.normal(KEY, (2, *size, 3))
    np.testing.assert_array_equal(max_pool(x), nn.max_pool(x, (2, 2), (2, 2)))
    np.testing.assert_allclose(avg_pool(x), nn.avg_pool(x, (2, 2), (2, 2)), rtol=1e-6)


def test_windows_of_one_pixel_change_nothing():
    x = jax.random.normal(KEY, (2, 3, 4, 5))
    np.testing.assert_array_equal(max_pool(x, 1), x)
    np.testing.assert_array_equal(jax.grad(lambda x: jnp.sum(max_pool(x, 1)))(x), jnp.ones_like(x))


def test_pools_with_overlap_or_padding_are_flaxs():
    x = jax.random.normal(KEY, (2, 7, 8, 3))
    pads = ((1, 1), (1, 1))
    np.testing.assert_array_equal(max_pool(x, 3, 2, 1), nn.max_pool(x, (3, 3), (2, 2), pads))
    np.testing.assert_array_equal(avg_pool(x, (2, 3), 1, "SAME"), nn.avg_pool(x, (2, 3), (1, 1), "SAME"))


@settings(max_examples=20, deadline=None)
@given(st.lists(st.integers(-2, 2), min_size=16, max_size=16))
def test_max_pool_hands_its_gradient_to_the_first_of_equals(values):
    x = jnp.array(values, jnp.float32).reshape(1, 4, 4, 1)
    found, expected = gradients_of_max_pool(x)
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(found.reshape(2, 2, 2, 2).sum((1, 3)), WEIGHTS[0, ..., 0])


def test_max_pool_loses_no_gradient_where_xla_computes_its_input_twice():
    """With jnp.max as the pool, a third of this gradient is missing once compiled."""
    kernel = jax.random.normal(jax.random.key(1), (5, 5, 3, 4))
    inputs = jax.random.normal(KEY, (3, 16, 16, 3))
    mask = jnp.array([1.0, 1, 0])

    def loss(kernel, pool):
        x = Conv(4, 5, padding="VALID", use_bias=False, lowering="lax").apply({"params": {"kernel": kernel}}, inputs)
        y, _ = BatchNorm(use_scale=False, use_bias=False).apply(STATS, x, mask, True, mutable=["batch_stats"])
        return jnp.sum(jnp.sin(pool(y))[:2])

    gradient = jax.grad(loss)
    compiled = jax.jit(gradient, static_argnums=1)
    np.testing.assert_allclose(compiled(kernel, max_pool), gradient(kernel, max_pool), rtol=1e-3, atol=1e-3)


def test_max_pool_hands_on_nan_wherever_it_is():
    for entry in np.ndindex(2, 2):
        x = jnp.zeros((1, 2, 2, 1)).at[0, *entry].set(jnp.nan)
        assert jnp.isnan(max_pool(x)).all()


@pytest.mark.parametrize("layer", [Conv(2, 5, padding="VALID").init_with_output, lambda _, x: max_pool(x, 5)])
def test_a_window_larger_than_the_image_is_refused(layer):
    with pytest.raises(InputError, match="width 4"):
        layer(KEY, jnp.zeros((1, 6, 4, 1)))


def test_an_unknown_lowering_is_refused():
    with pytest.raises(InputError, match="Did you mean 'patches'"):
        Conv(2, lowering="patch").init(KEY, jnp.zeros((1, 4, 4, 1)))

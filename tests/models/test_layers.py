import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from fedjax_het.errors import InputError
from fedjax_het.models._layers import Conv, UpConv, max_pool

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


def values_and_gradients(impl, case, dtype):
    size, channels, kernel, strides, padding = case
    layer = Conv(4, kernel, strides, padding, impl=impl)
    random = np.random.default_rng(0)
    x = random.normal(size=(2, *size, channels)).astype(dtype)
    shapes = {"kernel": (*np.broadcast_to(kernel, 2), channels, 4), "bias": (4,)}
    params = {name: random.normal(size=shape).astype(dtype) for name, shape in shapes.items()}

    @jax.jit
    def run(params, x):
        y, pull_back = jax.vjp(lambda params, x: layer.apply({"params": params}, x), params, x)
        return y, pull_back(jnp.sin(y))

    return run(params, x)


@pytest.mark.extended
@pytest.mark.parametrize(("dtype", "tolerance"), [("float64", 1e-12), ("float32", 1e-5)])
@pytest.mark.parametrize("case", CASES)
def test_all_ways_give_the_values_and_gradients_of_lax(case, dtype, tolerance):
    with jax.enable_x64(dtype == "float64"):
        expected, *found = (values_and_gradients(impl, case, dtype) for impl in ("lax", "im2col"))
    scale = max(np.abs(leaf).max() for leaf in jax.tree.leaves(expected))
    for each in found:
        jax.tree.map(
            lambda a, b: np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance * scale), each, expected
        )


@pytest.mark.parametrize("impl", ["lax", "im2col", "auto"])
def test_conv_has_the_leaves_and_values_of_flax(impl):
    x = jax.random.normal(KEY, (2, 6, 6, 3))
    variables = nn.Conv(4, (3, 3)).init(KEY, x)
    ours = Conv(4, impl=impl)
    assert jax.tree.map(jnp.shape, ours.init(KEY, x)) == jax.tree.map(jnp.shape, variables)
    np.testing.assert_allclose(ours.apply(variables, x), nn.Conv(4, (3, 3)).apply(variables, x), rtol=1e-4, atol=1e-5)


@pytest.mark.extended
@pytest.mark.parametrize("impl", ["lax", "im2col", "auto"])
def test_a_transposed_convolution_has_the_leaves_and_values_of_flax(impl):
    x = jax.random.normal(KEY, (2, 3, 5, 6))
    theirs = nn.ConvTranspose(4, (2, 2), (2, 2), padding="VALID", transpose_kernel=True)
    variables = theirs.init(KEY, x)
    variables["params"]["bias"] = jnp.arange(4.0)
    ours = UpConv(4, impl=impl)
    assert jax.tree.map(jnp.shape, ours.init(KEY, x)) == jax.tree.map(jnp.shape, variables)
    np.testing.assert_allclose(ours.apply(variables, x), theirs.apply(variables, x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("layer", [Conv(2, 5, padding="VALID").init_with_output, lambda _, x: max_pool(x, 5)])
def test_a_window_larger_than_the_image_is_refused(layer):
    with pytest.raises(InputError, match="width 4"):
        layer(KEY, jnp.zeros((1, 6, 4, 1)))

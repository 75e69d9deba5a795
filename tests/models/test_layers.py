"""Layers beside those of Flax and JAX: convolutions, pooling with ties and NaN, dense layers, and their gradients."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from hypothesis import given, settings
from hypothesis import strategies as st

from fedjax_het._internal.keys import make_key
from fedjax_het._internal.target_platform import tracing_for
from fedjax_het.errors import InputError
from fedjax_het.models._dense import Dense, multiply
from fedjax_het.models._layers import Conv, UpConv, _largest, avg_pool, max_pool
from fedjax_het.models._native import narrow, pooling
from fedjax_het.models._norms import BatchNorm

KEY = make_key(0)
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
def test_im2col_gives_the_values_and_gradients_of_lax(case, dtype, tolerance):
    with jax.enable_x64(dtype == "float64"):
        expected, found = (values_and_gradients(impl, case, dtype) for impl in ("lax", "im2col"))
    scale = max(np.abs(leaf).max() for leaf in jax.tree.leaves(expected))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance * scale), found, expected)


@pytest.mark.extended
@pytest.mark.parametrize("impl", ["lax", "im2col", "auto"])
@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (partial(Conv, 4), nn.Conv(4, (3, 3))),
        (partial(UpConv, 4), nn.ConvTranspose(4, (2, 2), (2, 2), padding="VALID", transpose_kernel=True)),
    ],
)
def test_convolutions_have_the_leaves_and_values_of_flax(ours, theirs, impl):
    x = jax.random.normal(KEY, (2, 3, 5, 6))
    variables = theirs.init(KEY, x)
    variables["params"]["bias"] = jnp.arange(4.0)
    ours = ours(impl=impl)
    assert jax.tree.map(jnp.shape, ours.init(KEY, x)) == jax.tree.map(jnp.shape, variables)
    np.testing.assert_allclose(ours.apply(variables, x), theirs.apply(variables, x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("layer", [Conv(2, 5, padding="VALID").init_with_output, lambda _, x: max_pool(x, 5)])
def test_a_window_larger_than_the_image_is_refused(layer):
    with pytest.raises(InputError, match="width 4"):
        layer(KEY, jnp.zeros((1, 6, 4, 1)))


# ---- pooling ---------------------------------------------------------------------------------------------------------
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


@pytest.mark.extended
def test_pools_match_flax():
    for size in ((4, 6), (5, 7)):
        x = jax.random.normal(KEY, (2, *size, 3))
        np.testing.assert_array_equal(max_pool(x), nn.max_pool(x, (2, 2), (2, 2)))
        np.testing.assert_allclose(avg_pool(x), nn.avg_pool(x, (2, 2), (2, 2)), rtol=1e-6)
        np.testing.assert_array_equal(max_pool(x, 3, 2, 1), nn.max_pool(x, (3, 3), (2, 2), ((1, 1), (1, 1))))
        np.testing.assert_array_equal(avg_pool(x, (2, 3), 1, "SAME"), nn.avg_pool(x, (2, 3), (1, 1), "SAME"))


def test_windows_of_one_pixel_change_nothing():
    x = jax.random.normal(KEY, (2, 3, 4, 5))
    np.testing.assert_array_equal(max_pool(x, 1), x)
    np.testing.assert_array_equal(jax.grad(lambda x: jnp.sum(max_pool(x, 1)))(x), jnp.ones_like(x))


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
@pytest.mark.every_case
@pytest.mark.skipif(pooling.explain_missing_kernel() is not None, reason="no kernel for pooling")
@pytest.mark.parametrize(("size", "window"), [((7, 6, 6), (2, 2)), ((5, 9, 3), (2, 3)), ((4, 6, 17), (2, 2))], ids=str)
def test_compiled_pooling_and_its_derivatives_are_those_of_xla(size, window):
    """For clients of several runs side by side; windows do not reach the last rows and columns, whose gradient is 0."""
    x, along = jnp.round(2 * jax.random.normal(KEY, (2, 2, 3, 2, *size)))  # with many equal entries

    @partial(jax.jit, static_argnums=0)
    def derivatives(pool, x, along):
        def slope(x):
            return jax.vjp(pool, x)[1](jnp.sin(pool(x)))[0]

        return pool(x), jax.jvp(pool, (x,), (along,)), slope(x), jax.jvp(slope, (x,), (along,))

    pools = (lambda x: pooling.max_pool(x, window)), (lambda x: _largest(pooling.cut_into_windows(x, window)))
    found, expected = (derivatives(jax.vmap(jax.vmap(pool)), x, along) for pool in pools)
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-6), found, expected)
    assert float(jnp.abs(found[3][1]).sum()) > 0


@pytest.mark.extended
def test_the_compiled_gradient_of_max_pool_is_complete():
    """With jnp.max as the pool, a third of this gradient is missing once compiled."""
    kernel = jax.random.normal(make_key(1), (5, 5, 3, 4))
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


# ---- dense layers ----------------------------------------------------------------------------------------------------
SHAPES = [((6, 5), (5, 4)), ((2, 4, 5), (5, 10)), ((7, 9), (9, 17)), ((6, 5), (5, 3))]  # the last for XLA


def draw(*shape: int) -> jax.Array:
    return jnp.asarray(np.random.default_rng(sum(shape)).normal(size=shape), jnp.float32)


def test_dense_has_the_leaves_and_values_of_flax():
    x, key = jax.random.normal(make_key(1), (5, 3)), make_key(0)
    ours, theirs = (layer(4).init_with_output(key, x) for layer in (Dense, nn.Dense))
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-6, atol=1e-6), ours, theirs)


@pytest.mark.extended
@pytest.mark.parametrize(("inputs", "kernel"), SHAPES)
@pytest.mark.parametrize("platform", ["cpu", "gpu"])
def test_a_product_has_the_derivatives_of_any_order_and_mode_of_jax(platform, inputs, kernel):
    inputs, kernel, change = draw(*inputs), draw(*kernel), draw(*kernel)[::-1]

    def derivatives(product):
        loss = lambda x, k: jnp.sum(jnp.sin(product(x, k)))  # noqa: E731
        yield product(inputs, kernel)
        yield jax.grad(loss, (0, 1))(inputs, kernel)
        yield jax.grad(loss)(inputs, kernel), jax.grad(loss, 1)(inputs, kernel)
        yield jax.jvp(partial_loss := lambda k: loss(inputs, k), (kernel,), (change,))
        yield jax.jvp(jax.grad(partial_loss), (kernel,), (change,))
        yield jax.grad(lambda k: jnp.sum(jax.grad(partial_loss)(k) * change))(kernel)
        yield jax.vmap(jax.grad(loss, (0, 1)), (None, 0))(inputs, jnp.stack([kernel, change]))

    with tracing_for(platform):
        found, expected = (jax.jit(lambda f=function: list(derivatives(f)))() for function in (multiply, jnp.matmul))
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, atol=2e-5), found, expected)


needs_narrow = pytest.mark.skipif(narrow.explain_missing_kernel() is not None, reason="no kernel for narrow products")


@needs_narrow
@pytest.mark.parametrize(
    ("num_rows", "depth", "width"),
    [(1, 3, 4), (5, 20, 7), (6, 1, 8), (7, 30, 9), (13, 11, 16), (20, 5, 26), (3, 2, 33)],
)
@pytest.mark.parametrize("clients", ["one", "shared", "each"])
def test_narrow_products_and_their_kernel_gradients_equal_those_in_float64(num_rows, depth, width, clients):
    num = () if clients == "one" else (3,)
    x, y = draw(*num, num_rows, depth), draw(*num, num_rows, width)
    kernel = draw(*(num if clients == "each" else ()), depth, width)

    def both(x, kernel, y):
        product, transpose = jax.vjp(multiply, x, kernel)
        return product, transpose(y)[1]

    axes = (0, 0 if clients == "each" else None, 0)
    product, gradient = jax.jit(jax.vmap(both, axes) if num else both)(x, kernel, y)
    wide = [np.asarray(part, np.float64) for part in (x, kernel, y)]
    np.testing.assert_allclose(product, wide[0] @ wide[1], rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(gradient, wide[0].swapaxes(-2, -1) @ wide[2], rtol=1e-5, atol=1e-5)


@needs_narrow
def test_narrow_products_are_compiled_functions_but_for_inputs_that_kernels_share():
    inputs, kernel = draw(20, 300), draw(300, 10)
    gradients = jax.grad(lambda k, x: jnp.sum(jnp.square(multiply(x, k))))
    text = jax.jit(gradients).lower(kernel, inputs).as_text()
    assert "narrow_product" in text and "narrow_kernel_gradient" in text
    shared = jax.jit(jax.vmap(gradients, (0, None))).lower(jnp.stack([kernel] * 2), inputs).as_text()
    assert "narrow" not in shared and "tensor<2x20x300xf32>" not in shared

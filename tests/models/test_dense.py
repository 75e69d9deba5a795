"""Dense layers, and the gradients of their products, held against those of JAX and Flax."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from fedjax_het._internal.target_platform import tracing_for
from fedjax_het.models._dense import Dense, multiply

SHAPES = [((6, 5), (5, 3)), ((2, 4, 5), (5, 1)), ((6, 40), (40, 33))]  # the last is not narrow


def draw(*shape: int) -> jax.Array:
    return jnp.asarray(np.random.default_rng(sum(shape)).normal(size=shape), jnp.float32)


def test_dense_has_the_leaves_and_values_of_flax():
    x, key = jax.random.normal(jax.random.key(1), (5, 3)), jax.random.key(0)
    ours, theirs = (layer(4).init_with_output(key, x) for layer in (Dense, nn.Dense))
    jax.tree.map(np.testing.assert_array_equal, ours, theirs)


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
        found = list(derivatives(multiply))
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, atol=2e-5), found, list(derivatives(jnp.matmul)))


def test_the_gradient_of_a_narrow_kernel_is_computed_transposed_on_a_cpu():
    gradient = jax.jit(jax.grad(lambda k, x: jnp.sum(jnp.square(multiply(x, k)))))
    text = gradient.lower(draw(300, 10), draw(20, 300)).compile().as_text()
    assert "f32[10,300]" in text

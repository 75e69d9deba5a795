"""Mixed precision: what stays in float32, and loss curves on real data beside those of float32."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_het import algorithms, data, engine, models
from fedjax_het._internal.keys import make_key
from fedjax_het.models import computed_in
from fedjax_het.models._conv_impl import convolve
from fedjax_het.models._dense import Dense
from fedjax_het.models._layers import Conv, UpConv

COUNT = 2**14  # entries that bfloat16, one by one, would sum to 256


@pytest.mark.extended
@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        *((Conv(2, 1, impl=impl), (64, 16, 16, 1)) for impl in ("lax", "im2col")),
        (UpConv(2), (64, 8, 8, 1)),
        (Dense(2), (COUNT, 1)),
    ],
)
def test_the_gradient_of_a_bias_is_summed_in_float32(layer, shape):
    x = jnp.ones(shape, jnp.bfloat16)
    params = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), layer.init(make_key(0), x))

    @jax.jit
    def gradient(params, x, weight):
        return jax.grad(lambda params: jnp.sum(weight * layer.apply(params, x).astype(jnp.float32)))(params)

    np.testing.assert_array_equal(gradient(params, x, jnp.ones(()))["params"]["bias"], COUNT)


@pytest.mark.extended
@pytest.mark.parametrize("impl", ["lax", "im2col"])
def test_convolutions_and_their_gradients_are_rounded_to_bfloat16_once_or_twice(impl):
    """Sums of 25 or more numbers in bfloat16 would be off by twice as much."""
    draw = np.random.default_rng(0).standard_normal
    arrays = [jnp.asarray(draw(shape), jnp.bfloat16) for shape in ((2, 8, 8, 16), (5, 5, 16, 8), (2, 8, 8, 8))]

    @jax.jit
    def run(x, kernel, cotangent):
        y, pull_back = jax.vjp(lambda *arguments: convolve(impl, *arguments, (1, 1), ((2, 2), (2, 2))), x, kernel)
        return y, *pull_back(cotangent)

    with jax.enable_x64(True):
        exact = run(*(jnp.asarray(array, jnp.float64) for array in arrays))
    for found, expected in zip(run(*arrays), exact, strict=True):
        assert found.dtype == jnp.bfloat16
        error = np.asarray(found, np.float64) - np.asarray(expected)
        assert np.sqrt(np.mean(error**2) / np.mean(np.square(expected))) < 3e-3


@pytest.mark.slow
def test_loss_curves_in_bfloat16_follow_those_of_float32():
    """A small CNN on real digits, 20 rounds: weights and the optimizer's sums stay in float32."""
    federation = data.federate(data.SOURCES["digits"](), data.dirichlet(0.5), num_clients=10, standardise=True)
    curves, scores = {}, {}
    for precision in ("float32", "bfloat16"):
        network = models.cnn(10, channels=(8, 16), hidden=(32,), kernel=3, norm="group")
        simulation = engine.Simulation(
            algorithms.fedadam(learning_rate=0.05, batch_size=32, server_learning_rate=0.01),
            computed_in(precision)(network),
            federation,
            rounds=20,
            evaluate_every=20,
            layout=engine.chunked(1),
        )
        state, metrics = simulation.advance(simulation.start(), 20)
        dtypes = {leaf.dtype for leaf in jax.tree.leaves(state.server) if jnp.issubdtype(leaf.dtype, jnp.floating)}
        assert dtypes == {jnp.dtype("float32")}
        curves[precision] = np.asarray(metrics.loss)[0]
        scores[precision] = float(simulation.evaluate(state).test.accuracy[0])
    full, half = curves["float32"], curves["bfloat16"]
    print("\n", np.round(full, 4), np.round(half, 4), scores)
    assert full[-1] < full[0] / 4
    assert 0 < np.abs(half - full).max() < 0.05 * full[0]
    assert abs(scores["bfloat16"] - scores["float32"]) < 0.02

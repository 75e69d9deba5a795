"""Common and distinguishing properties of the server optimizers."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from fedjax_het.errors import InputError
from fedjax_het.server.optimizers import adagrad, adam, flash, sgd, yogi

OPTIMIZERS = {
    "avgm": sgd(),
    "damped": sgd(momentum_damping=True),
    "adagrad": adagrad(),
    "adam": adam(),
    "adam, corrected": adam(bias_correction="adam"),
    "yogi": yogi(),
    "yogi, v0": yogi(v0=1e-2),
    "flash": flash(),
    "flash, safe": flash(safe=True),
}
every_optimizer = pytest.mark.parametrize("name", OPTIMIZERS)
adaptive = pytest.mark.parametrize("optimizer", [adagrad, adam, yogi])
moves = hnp.arrays(np.float64, (4, 3), elements=st.floats(-100, 100))
GRADIENTS = np.random.default_rng(0).normal(size=(5, 6))


def optimize(optimizer, gradients) -> tuple[np.ndarray, list]:
    """(steps [round, d], states) that the optimizer makes of pseudo-gradients [round, d]."""
    state, steps, states = optimizer.init(jnp.zeros(gradients.shape[1])), [], []
    update = jax.jit(optimizer.update)
    for gradient in gradients:
        step, state = update(jnp.asarray(gradient, jnp.float32), state)
        steps.append(step)
        states.append(state)
    return np.stack(steps), states


@every_optimizer
def test_negated_gradients_give_negated_steps(name):
    np.testing.assert_array_equal(optimize(OPTIMIZERS[name], GRADIENTS)[0], -optimize(OPTIMIZERS[name], -GRADIENTS)[0])


@every_optimizer
def test_coordinates_are_optimized_independently(name):
    alone = np.concatenate([optimize(OPTIMIZERS[name], GRADIENTS[:, i : i + 1])[0] for i in range(6)], axis=1)
    np.testing.assert_allclose(optimize(OPTIMIZERS[name], GRADIENTS)[0], alone, rtol=1e-6)


@every_optimizer
def test_zero_gradients_give_no_step(name):
    steps, states = optimize(OPTIMIZERS[name], np.zeros((3, 2)))
    assert not np.any(steps)
    assert all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(states))


@every_optimizer
def test_dtypes_are_kept(name):
    params = {"a": jnp.zeros(3, jnp.bfloat16), "b": jnp.zeros(2)}
    before = OPTIMIZERS[name].init(params)
    step, after = OPTIMIZERS[name].update(jax.tree.map(jnp.ones_like, params), before)
    for old, new in ((before, after), (params, step)):
        assert jax.tree.map(lambda x: x.dtype, old) == jax.tree.map(lambda x: x.dtype, new)


def test_momentum_matches_steps_computed_by_hand():
    steps, _ = optimize(sgd(0.5, 0.9), np.array([[1.0], [1.0], [0.0]]))
    np.testing.assert_allclose(steps[:, 0], [-0.5, -0.95, -0.855], rtol=1e-6)
    steps, _ = optimize(sgd(0.5, 0.9, momentum_damping=True), np.array([[1.0], [1.0], [0.0]]))
    np.testing.assert_allclose(steps[:, 0], [-0.05, -0.095, -0.0855], rtol=1e-6)


def test_fedavgm_without_momentum_is_the_mean():
    np.testing.assert_array_equal(optimize(sgd(momentum=0.0), GRADIENTS)[0], -GRADIENTS.astype(np.float32))


@pytest.mark.extended
@settings(max_examples=20, deadline=None)
@given(moves)
def test_adagrads_second_moment_never_decreases(gradients):
    moments = [state.second for state in optimize(OPTIMIZERS["adagrad"], gradients)[1]]
    assert all(np.all(late >= early) for early, late in itertools.pairwise(moments))


@settings(max_examples=20, deadline=None)
@given(moves, st.sampled_from(["adam", "yogi", "yogi, v0"]))
def test_second_moments_are_never_negative(gradients, name):
    assert all(np.all(state.second >= 0) for state in optimize(OPTIMIZERS[name], gradients)[1])


def test_adam_without_momentum_is_a_soft_sign():
    steps, _ = optimize(adam(0.1, 0.0, 0.0, 0.5), GRADIENTS)
    np.testing.assert_allclose(steps, -0.1 * GRADIENTS / (np.abs(GRADIENTS) + 0.5), rtol=1e-5)


@adaptive
def test_a_large_tau_gives_plain_momentum(optimizer):
    steps, states = optimize(optimizer(3e6, tau=1e6), GRADIENTS)
    np.testing.assert_allclose(steps, [-3 * state.first for state in states], rtol=1e-5)


def test_the_first_steps_of_adam_and_yogi_are_the_same():
    first, second = (optimize(optimizer(), GRADIENTS)[0] for optimizer in (adam, yogi))
    wanted = -0.01 * 0.1 * GRADIENTS[0] / (0.1 * np.abs(GRADIENTS[0]) + 1e-3)
    np.testing.assert_allclose(first[0], wanted, rtol=1e-4)
    np.testing.assert_allclose(second[0], wanted, rtol=1e-4)
    assert np.abs(first[-1] - second[-1]).max() > 1e-5


def test_yogi_forgets_a_large_update_more_slowly():
    gradients = np.concatenate([np.full((1, 1), 10.0), np.full((50, 1), 0.1)])
    adam_moment, yogi_moment = (optimize(optimizer(b2=0.9), gradients)[1][-1].second for optimizer in (adam, yogi))
    assert yogi_moment > 10 * adam_moment


def test_adams_bias_correction_with_a_tiny_tau_matches_optax():
    theirs, _ = optimize(optax.adam(0.01, 0.9, 0.99, eps=1e-12), GRADIENTS)
    ours, _ = optimize(adam(0.01, tau=1e-12, bias_correction="adam"), GRADIENTS)
    np.testing.assert_allclose(ours, theirs, rtol=1e-4)


def test_flowers_bias_correction_is_one_round_ahead():
    plain, flower = (optimize(adam(bias_correction=name), GRADIENTS)[0] for name in (None, "flower"))
    factor = np.sqrt(1 - 0.99**2) / (1 - 0.9**2)
    np.testing.assert_allclose(flower[0], factor * plain[0], rtol=1e-5)


def test_flash_without_a_memory_of_squares_is_adam():
    np.testing.assert_allclose(optimize(flash(b2=0.0), GRADIENTS)[0], optimize(adam(0.1, b2=0.0), GRADIENTS)[0])


def test_a_safe_denominator_keeps_the_direction_of_a_large_first_update():
    """In the first round the printed denominator is .1 |D| - .99 D^2 + tau."""
    gradients = np.array([[0.05, 0.2]])
    wanted = -0.1 * 0.1 * gradients / (0.1 * gradients - 0.99 * gradients**2 + 1e-3)
    np.testing.assert_allclose(optimize(flash(), gradients)[0], wanted, rtol=1e-4)
    np.testing.assert_allclose(optimize(flash(safe=True), gradients)[0][:, 1], -0.01 * 0.2 / 1e-3, rtol=1e-4)


@adaptive
def test_v0_sets_the_initial_second_moment(optimizer):
    for v0, wanted in ((0.0, 0.0), (0.25, 0.25), ("tau2", 0.01)):
        np.testing.assert_allclose(optimizer(tau=0.1, v0=v0).init(jnp.zeros(2)).second, wanted, rtol=1e-6)


@adaptive
def test_settings_can_be_traced(optimizer):
    def step(rate, tau):
        traced = optimizer(rate, tau=tau, v0="tau2")
        return traced.update(jnp.ones(2), traced.init(jnp.zeros(2)))[0]

    concrete = optimizer(0.3, tau=0.2, v0="tau2")
    wanted, _ = concrete.update(jnp.ones(2), concrete.init(jnp.zeros(2)))
    np.testing.assert_allclose(jax.jit(step)(0.3, 0.2), wanted, rtol=1e-6)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: adam(tau=0), "tau: must be a finite number above 0"),
        (lambda: adam(v0="tau"), "v0: unknown option 'tau'. Did you mean 'tau2'"),
        (lambda: yogi(v0=-1.0), "v0: must be a finite number of at least 0"),
        (lambda: yogi(b1=1.0), r"b1: must be a number in \[0, 1\)"),
        (lambda: adam(b2=-0.1), r"b2: must be a number in \[0, 1\)"),
        (lambda: sgd(momentum=1), r"momentum: must be a number in \[0, 1\)"),
        (lambda: adagrad(-0.1), "learning_rate: must be a finite number"),
        (lambda: adam(bias_correction="flwr"), "bias_correction: unknown option 'flwr'. Did you mean 'flower'"),
    ],
)
def test_invalid_settings_are_refused(build, message):
    with pytest.raises(InputError, match=message):
        build()

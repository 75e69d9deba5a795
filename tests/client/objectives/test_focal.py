"""Focal loss, and its gradient where the plain formula is not differentiable."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedjax_het.client.objectives import focal
from fedjax_het.client.objectives._supervised import focal_losses
from fedjax_het.errors import InputError
from fedjax_het.problem import ForwardPass
from fedjax_het.types import Batch, Outputs

pytestmark = pytest.mark.extended

RNG = np.random.default_rng(0)
LOGITS = jnp.asarray(RNG.normal(size=(6, 4)), jnp.float32)
LABELS = jnp.array([0, 1, 2, 3, 0, 1])


def evaluate(term, logits, labels, mask=None):
    mask = jnp.ones(len(labels)) if mask is None else mask
    return term(ForwardPass(None, {}, {}, Outputs(logits, logits, {}), Batch(logits, labels, mask), None, None))


def test_gamma_zero_and_beta_one_is_cross_entropy():
    ours = focal_losses(LOGITS, LABELS, 0.0, 1.0)
    np.testing.assert_allclose(ours, optax.softmax_cross_entropy_with_integer_labels(LOGITS, LABELS), rtol=1e-5)


def test_focal_losses_match_the_papers_formula():
    p = np.asarray(jax.nn.softmax(LOGITS))[np.arange(6), LABELS]
    np.testing.assert_allclose(focal_losses(LOGITS, LABELS, 0.5, 1.5), -1.5 * (1 - p) ** 0.5 * np.log(p), rtol=1e-5)


@pytest.mark.parametrize("gamma", [0.0, 0.1, 0.5, 1.0, 2.0])
@pytest.mark.parametrize("lead", [-1e4, -50.0, 0.0, 20.0, 50.0, 200.0, 1e4])
def test_the_gradient_is_finite_for_any_confidence(gamma, lead):
    logits = jnp.zeros((1, 3)).at[0, 1].set(lead)
    loss, gradient = jax.value_and_grad(lambda z: focal_losses(z, jnp.array([1]), gamma, 1.0)[0])(logits)
    assert np.isfinite(loss) and np.all(np.isfinite(gradient))
    assert loss >= 0


def test_small_losses_keep_their_digits_in_float32():
    """p_t rounds to 1 here: 1 - p_t = 2 exp(-30), and the loss is about (1 - p_t)^1.5."""
    logits = jnp.zeros((1, 3)).at[0, 1].set(30.0)
    np.testing.assert_allclose(focal_losses(logits, jnp.array([1]), 0.5, 1.0), (2 * np.exp(-30.0)) ** 1.5, rtol=1e-4)


@given(st.integers(0, 1000), st.floats(0, 3), st.floats(0.1, 3))
@settings(deadline=None, max_examples=20)
def test_the_gradient_matches_the_papers_formula(seed, gamma, beta):
    """dL/dlog p = beta gamma (1-p)^(gamma-1) p log p - beta (1-p)^gamma"""
    logits = jnp.asarray(np.random.default_rng(seed).normal(size=5), jnp.float32)
    gradient = jax.grad(lambda z: focal_losses(z, jnp.array(2), gamma, beta))(logits)
    p = np.asarray(jax.nn.softmax(logits), float)
    true = p[2]
    outer = beta * (gamma * (1 - true) ** (gamma - 1) * true * np.log(true) - (1 - true) ** gamma)
    np.testing.assert_allclose(gradient, outer * ((np.arange(5) == 2) - p), rtol=2e-3, atol=1e-5)


def test_padding_is_ignored_and_masks_are_averaged_over_pixels():
    mask = jnp.array([1.0, 1, 1, 1, 0, 0])
    np.testing.assert_allclose(
        evaluate(focal(), LOGITS, LABELS, mask), evaluate(focal(), LOGITS[:4], LABELS[:4]), rtol=1e-6
    )
    pixels, labels = LOGITS.reshape(1, 2, 3, 4), LABELS.reshape(1, 2, 3)
    np.testing.assert_allclose(evaluate(focal(), pixels, labels), evaluate(focal(), LOGITS, LABELS), rtol=1e-6)


def test_gamma_can_be_traced():
    assert np.isfinite(jax.jit(lambda gamma: evaluate(focal(gamma), LOGITS, LABELS))(0.3))


@pytest.mark.parametrize("options", [{"gamma": -0.1}, {"beta": -1.0}, {"gamma": float("nan")}])
def test_options_out_of_range_are_refused(options):
    with pytest.raises(InputError, match=f"{next(iter(options))}: must be"):
        focal(**options)

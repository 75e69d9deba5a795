import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_het.client.objectives import cross_entropy, dice, margin, proximal
from fedjax_het.client.objectives._regularizers import MARGIN_FORMS
from fedjax_het.errors import InputError
from fedjax_het.problem import ForwardPass
from fedjax_het.types import Batch, Broadcast, ClientView, Outputs

RNG = np.random.default_rng(1)
LOGITS, LABELS = RNG.normal(size=(6, 3)), RNG.integers(0, 3, 6)


def forward(logits, labels, mask, params=None, start=None) -> ForwardPass:
    batch = Batch(jnp.asarray(logits), jnp.asarray(labels), jnp.asarray(mask, float))
    view = ClientView(Broadcast(None, {}, {}), {}, {}, None, {"params": start}, {}, (), {}, None)
    return ForwardPass(None, params, {}, Outputs(batch.inputs, batch.inputs, {}), batch, view, None)


TERMS = {"cross entropy": cross_entropy(), "dice": dice()} | {form: margin(0.3, form) for form in MARGIN_FORMS}


@pytest.mark.extended
@pytest.mark.parametrize("name", TERMS)
def test_padding_changes_no_term(name):
    padded_logits, padded_labels = np.concatenate([LOGITS, 9 + LOGITS[:2]]), np.concatenate([LABELS, LABELS[:2]])
    mask = np.array([1] * 6 + [0] * 2)
    whole = TERMS[name](forward(LOGITS, LABELS, np.ones(6)))
    np.testing.assert_allclose(TERMS[name](forward(padded_logits, padded_labels, mask)), whole, rtol=1e-6)


@pytest.mark.extended
@pytest.mark.parametrize("name", TERMS)
def test_an_empty_batch_gives_no_nan(name):
    def loss(logits):
        return TERMS[name](forward(logits, LABELS, np.zeros(6)))

    value, gradient = jax.value_and_grad(loss)(jnp.asarray(LOGITS))
    assert np.isfinite(value) and np.all(np.isfinite(gradient))


@pytest.mark.extended
def test_cross_entropy_of_maps_is_the_mean_over_pixels():
    logits, labels = RNG.normal(size=(2, 3, 4, 5)), RNG.integers(0, 5, (2, 3, 4))
    flat = cross_entropy()(forward(logits.reshape(-1, 5), labels.reshape(-1), np.ones(24)))
    np.testing.assert_allclose(cross_entropy()(forward(logits, labels, np.ones(2))), flat, rtol=1e-6)


@pytest.mark.parametrize("form", ["squared", "norm_per_tensor"])
def test_the_proximal_gradient_is_zero_at_the_received_model(form):
    params = {"w": jnp.asarray(LOGITS), "b": jnp.ones(3)}
    gradient = jax.grad(lambda p: proximal(0.7, form)(forward(LOGITS, LABELS, np.ones(6), p, params)))(params)
    assert not any(np.any(leaf) for leaf in jax.tree.leaves(gradient))


def test_proximal_forms_match_their_definitions():
    start = {"w": jnp.zeros((2, 2)), "b": jnp.zeros(2)}
    params = {"w": jnp.full((2, 2), 2.0), "b": jnp.array([3.0, 4.0])}
    case = forward(LOGITS, LABELS, np.ones(6), params, start)
    assert float(proximal(0.5)(case)) == pytest.approx(0.25 * (16 + 25))
    assert float(proximal(0.5, "norm_per_tensor")(case)) == pytest.approx(0.5 * (4 + 5))


@pytest.mark.parametrize("factory", [proximal, margin])
def test_an_unknown_form_is_refused(factory):
    with pytest.raises(InputError, match="form: unknown option"):
        factory(0.1, "cubic")

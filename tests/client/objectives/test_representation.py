import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedjax_het._internal.keys import make_key
from fedjax_het.client.objectives import conditional_information, l2_representation
from fedjax_het.errors import InputError
from fedjax_het.problem import ForwardPass
from fedjax_het.types import Batch, Outputs

RNG = np.random.default_rng(4)
Z = RNG.normal(size=(6, 5)).astype(np.float32)
LABELS = RNG.integers(0, 3, 6)
numbers = st.floats(-3, 3, width=32)


def forward(features=Z, mask=None, *, mean=None, scale=None, reference=None) -> ForwardPass:
    features = jnp.asarray(features)
    batch = Batch(features, jnp.asarray(LABELS), jnp.ones(6) if mask is None else jnp.asarray(mask, float))
    extras = {} if mean is None else {"mean": mean, "scale": scale}
    params = {} if reference is None else {"reference": reference}
    return ForwardPass(None, params, {}, Outputs(features, features, extras), batch, None, None)


def information(mean, scale, reference, **options):
    return conditional_information(1.0, **options)(forward(mean=mean, scale=scale, reference=reference))


def draw_reference(factor=1.0):
    shape = (3, 5)
    return {
        "mean": jnp.asarray(RNG.normal(size=shape), jnp.float32),
        "scale": jnp.asarray(RNG.normal(size=shape), jnp.float32),
        "factor": jnp.float32(factor),
    }


@pytest.mark.parametrize(("power", "expected"), [(1, 5.0), (2, 25.0)])
def test_the_l2_term_of_a_known_vector_is_its_length_to_the_power(power, expected):
    features = np.tile([3.0, 4.0, 0.0], (6, 1))
    assert float(l2_representation(1.0, power)(forward(features))) == pytest.approx(expected)


@pytest.mark.parametrize("power", [1, 2])
def test_the_l2_term_is_invariant_to_rotation(power):
    rotation = np.linalg.qr(RNG.normal(size=(5, 5)))[0]
    term = l2_representation(0.3, power)
    np.testing.assert_allclose(term(forward(Z @ rotation)), term(forward(Z)), rtol=1e-5)


@pytest.mark.extended
def test_a_zero_vector_has_no_gradient():
    features = Z.copy()
    features[2] = 0
    gradient = jax.grad(lambda z: l2_representation(1.0)(forward(z)))(jnp.asarray(features))
    assert np.all(np.isfinite(gradient)) and not np.any(gradient[2]) and np.any(gradient[1])


@pytest.mark.parametrize("power", [0, 3, "2"])
def test_other_powers_are_refused(power):
    with pytest.raises(InputError, match="power: must be 1 or 2"):
        l2_representation(0.1, power)


@pytest.mark.extended
@settings(max_examples=30, deadline=None)
@given(numbers, numbers, numbers, numbers, st.sampled_from([1.0, -0.7, 0.3]))
def test_information_is_never_negative(mean, raw, target, width, factor):
    reference = {"mean": jnp.full((3, 5), target), "scale": jnp.full((3, 5), width), "factor": jnp.float32(factor)}
    value = information(jnp.full((6, 5), mean), jax.nn.softplus(jnp.full((6, 5), raw)), reference)
    assert float(value) > -1e-4


@pytest.mark.parametrize("factor", [1.0, 0.5, -2.0])
def test_information_is_zero_only_where_the_distributions_agree(factor):
    reference = draw_reference(factor)
    mean = reference["mean"][LABELS] / factor
    scale = jax.nn.softplus(reference["scale"])[LABELS] / abs(factor)
    assert float(information(mean, scale, reference)) == pytest.approx(0, abs=1e-5)
    assert float(information(mean + 0.1, scale, reference)) > 1e-3
    assert float(information(mean, 1.2 * scale, reference)) > 1e-3


def test_information_is_the_mean_log_ratio_of_the_densities():
    """By sampling: E ln N(z; c mu, c sigma) / N(z; r_mu, r_sigma)."""
    reference = draw_reference(1.4)
    mean, scale = jnp.asarray(Z), jax.nn.softplus(jnp.asarray(Z))
    target, width = reference["mean"][LABELS], jax.nn.softplus(reference["scale"])[LABELS]
    draws = 1.4 * (mean + scale * jax.random.normal(make_key(0), (20000, 6, 5)))
    density = jax.scipy.stats.norm.logpdf
    ratio = density(draws, 1.4 * mean, 1.4 * scale) - density(draws, target, width)
    expected = ratio.sum(axis=-1).mean()
    assert float(information(mean, scale, reference)) == pytest.approx(float(expected), rel=0.02)


def test_the_factor_defaults_to_one():
    reference = draw_reference(1.0)
    bare = {name: leaf for name, leaf in reference.items() if name != "factor"}
    scale = jax.nn.softplus(jnp.asarray(Z))
    assert information(Z, scale, bare) == information(Z, scale, reference)


@pytest.mark.extended
@pytest.mark.parametrize("factor", [0.0, -1.0, 1e-30])
@pytest.mark.parametrize("raw", [0.0, -800.0])
def test_information_and_gradients_stay_finite_at_extreme_scales(factor, raw):
    def loss(reference, s):
        return information(jnp.asarray(Z), jax.nn.softplus(s), reference)

    reference = draw_reference(factor) | {"scale": jnp.full((3, 5), raw)}
    value, gradients = jax.value_and_grad(loss, (0, 1))(reference, jnp.full((6, 5), raw))
    assert all(bool(jnp.all(jnp.isfinite(leaf))) for leaf in jax.tree.leaves((value, gradients)))


@pytest.mark.extended
def test_an_absent_class_gets_no_gradient():
    reference = draw_reference()
    reference = {name: jnp.concatenate([leaf, leaf[:1]]) if leaf.ndim else leaf for name, leaf in reference.items()}
    gradient = jax.grad(lambda r: information(jnp.asarray(Z), jax.nn.softplus(jnp.asarray(Z)), r))(reference)
    assert not np.any(gradient["mean"][3]) and not np.any(gradient["scale"][3])
    assert np.any(gradient["mean"][LABELS[0]])


def test_padding_changes_no_term():
    mask = np.array([1, 1, 1, 0, 0, 1])
    far = np.where(mask[:, None] > 0, Z, 50 + Z)
    reference = draw_reference()
    for term in (l2_representation(), conditional_information()):
        values = [
            term(forward(z, mask, mean=jnp.asarray(z), scale=jnp.exp(jnp.asarray(z) / 50), reference=reference))
            for z in (Z, far)
        ]
        np.testing.assert_allclose(*values, rtol=1e-5)


def test_the_error_for_a_model_without_a_distribution_says_what_to_add():
    with pytest.raises(InputError, match=r"Add adapt=.*probabilistic"):
        conditional_information()(forward())

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from fedjax_het.client.objectives import contrastive
from fedjax_het.client.objectives._contrastive import cluster_contrast, cosine, model_contrast
from fedjax_het.errors import InputError

RNG = np.random.default_rng(0)
Z, RECEIVED, PREVIOUS = RNG.normal(size=(5, 4)), RNG.normal(size=(5, 4)), RNG.normal(size=(2, 5, 4))
BOTH = jnp.array([True, True])
number = st.floats(-10, 10, width=32).filter(lambda x: x == 0 or abs(x) > 1e-3)


@jax.jit
def contrast(features, received, previous, is_kept, temperature):
    value = lambda z: model_contrast(z, received, previous, is_kept, temperature)  # noqa: E731
    return value(features), jax.grad(lambda z: jnp.sum(value(z)))(features)


@pytest.mark.extended
@settings(max_examples=30, deadline=None)
@given(arrays(np.float32, (4, 3, 4), elements=number), st.sampled_from([0.05, 0.5, 5.0]))
def test_the_loss_is_bounded_and_its_gradient_is_orthogonal_to_the_features(vectors, temperature):
    loss, gradient = contrast(vectors[0], vectors[1], vectors[2:], BOTH, temperature)
    assert np.all(loss >= 0) and np.all(loss <= np.log1p(2 * np.exp(2 / temperature)) * 1.0001)
    along = np.sum(np.asarray(gradient, np.float64) * vectors[0], axis=-1)
    np.testing.assert_allclose(along, 0, atol=1e-4 / temperature)


def test_the_loss_depends_on_directions_only():
    loss, _ = contrast(Z, RECEIVED, PREVIOUS, BOTH, 0.5)
    np.testing.assert_allclose(contrast(3 * Z, 0.1 * RECEIVED, 7 * PREVIOUS, BOTH, 0.5)[0], loss, rtol=1e-5)


def test_the_order_of_earlier_models_has_no_effect():
    a, b = (contrast(Z, RECEIVED, previous, BOTH, 0.5)[0] for previous in (PREVIOUS, PREVIOUS[::-1]))
    np.testing.assert_allclose(a, b, rtol=1e-6)


def test_swapping_the_two_models_mirrors_the_loss():
    is_first = jnp.array([True, False])
    forward, _ = contrast(Z, RECEIVED, PREVIOUS, is_first, 0.5)
    back, _ = contrast(Z, PREVIOUS[0], np.stack([RECEIVED, RECEIVED]), is_first, 0.5)
    x = (cosine(Z, RECEIVED) - cosine(Z, PREVIOUS[0])) / 0.5
    np.testing.assert_allclose(forward, jax.nn.softplus(-x), rtol=1e-5)
    np.testing.assert_allclose(back, jax.nn.softplus(x), rtol=1e-5)


def test_at_a_high_temperature_the_loss_is_that_of_equal_similarities():
    np.testing.assert_allclose(contrast(Z, RECEIVED, PREVIOUS, BOTH, 1e6)[0], np.log(3), rtol=1e-5)


def test_without_an_earlier_model_loss_and_gradient_are_zero():
    loss, gradient = contrast(Z, RECEIVED, PREVIOUS, ~BOTH, 0.5)
    assert not np.any(loss) and not np.any(gradient)


def test_zero_vectors_have_similarity_zero_and_no_gradient():
    loss, gradient = contrast(np.zeros((5, 4)), RECEIVED, PREVIOUS, BOTH, 0.5)
    np.testing.assert_allclose(loss, np.log(3), rtol=1e-6)
    assert not np.any(gradient)


def test_a_low_temperature_does_not_overflow():
    loss, gradient = contrast(Z, RECEIVED, PREVIOUS, BOTH, 1e-3)
    assert np.all(np.isfinite(loss)) and np.all(np.isfinite(gradient))


def test_a_temperature_of_zero_is_refused():
    with pytest.raises(InputError, match="temperature: must be a finite number above 0"):
        contrastive(temperature=0.0)


# ---- clusters of prototypes ------------------------------------------------------------------------------------------
CLUSTERS, LABELS = RNG.normal(size=(3, 2, 4)), np.array([0, 1, 2, 0, 1])
ALL, FIRST = np.ones((3, 2), bool), np.array([[True, False]] * 3)


@jax.jit
def against_clusters(features, clusters, is_cluster, temperature=0.1):
    value = lambda z: cluster_contrast(z, LABELS, clusters, is_cluster, temperature)  # noqa: E731
    return value(features), jax.grad(lambda z: jnp.sum(value(z)))(features)


def test_the_contrast_to_clusters_follows_directions_alone():
    loss, gradient = against_clusters(Z, CLUSTERS, ALL)
    assert np.all(loss > 0)
    np.testing.assert_allclose(against_clusters(3 * Z, 0.2 * CLUSTERS, ALL)[0], loss, rtol=1e-5)
    np.testing.assert_allclose(np.sum(gradient * Z, axis=1), 0, atol=1e-4)
    loss, gradient = against_clusters(0 * Z, CLUSTERS, ALL)
    np.testing.assert_allclose(loss, np.log(3), rtol=1e-5)  # all cosines are 0
    assert not np.any(gradient)


@pytest.mark.extended
def test_the_contrast_to_single_clusters_is_the_usual_one_of_prototypes():
    loss, _ = against_clusters(Z, CLUSTERS, FIRST)
    cosines = cosine(jnp.asarray(Z)[:, None], jnp.asarray(CLUSTERS)[:, 0]) / 0.1
    np.testing.assert_allclose(loss, -jax.nn.log_softmax(cosines)[np.arange(5), LABELS], rtol=1e-4, atol=1e-5)


def test_classes_without_clusters_or_rivals_have_no_contrast():
    missing = ALL & (np.arange(3) != 1)[:, None]
    loss, gradient = against_clusters(Z, CLUSTERS, missing)
    assert not np.any(loss[LABELS == 1]) and not np.any(gradient[LABELS == 1]) and np.all(loss[LABELS != 1] > 0)
    for is_cluster in (ALL & (np.arange(3) == 0)[:, None], ~ALL):
        loss, gradient = against_clusters(Z, CLUSTERS, is_cluster)
        assert not np.any(loss) and not np.any(gradient)


def test_clusters_of_classes_refuse_times_of_survival():
    with pytest.raises(InputError, match="survival times"):
        cluster_contrast(jnp.ones((2, 3)), jnp.array([1.5, -2.0]), jnp.ones((2, 1, 3)), jnp.ones((2, 1), bool))

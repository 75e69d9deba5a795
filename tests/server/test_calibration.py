"""Moments of classes pooled over clients, and heads trained on virtual features."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_het._internal.keys import make_key
from fedjax_het.server.calibration import ClassMoments, add_moments, calibrate_head, no_moments
from tests.harness import is_equal

pytestmark = pytest.mark.extended

RNG = np.random.default_rng(0)
FEATURES = RNG.normal(size=(30, 3)) @ RNG.normal(size=(3, 3)) + 5
LABELS = RNG.integers(3, size=30)  # of four classes; the last is nowhere


def report(rows: np.ndarray) -> dict:
    """What a client with these examples reports."""
    counts, means, covariances = np.zeros(4), np.zeros((4, 3)), np.zeros((4, 3, 3))
    for number in range(4):
        own = FEATURES[rows][LABELS[rows] == number]
        counts[number] = len(own)
        if len(own):
            means[number] = own.mean(axis=0)
        if len(own) > 1:
            covariances[number] = np.cov(own.T)
    return {"counts": counts, "means": means, "covariances": covariances}


def pool(clients: list[np.ndarray]) -> ClassMoments:
    total = no_moments(4, 3)
    for rows in clients:
        total = add_moments(total, report(rows))
    return jax.tree.map(np.asarray, total)


def test_pooled_moments_do_not_depend_on_how_examples_are_divided():
    with jax.enable_x64(True):
        together = pool([np.arange(30)])
        for divided in (np.split(RNG.permutation(30), [1, 3, 11]), [np.array([i]) for i in range(30)]):
            for ours, expected in zip(pool(divided), together, strict=True):
                np.testing.assert_allclose(ours, expected, rtol=1e-12, atol=1e-12)
        for number in range(3):
            own = FEATURES[number == LABELS]
            np.testing.assert_allclose(together.covariances[number], np.cov(own.T), rtol=1e-12)
    assert not np.any(together.means[3]) and not np.any(together.covariances[3])


@pytest.mark.slow
def test_calibration_changes_the_head_alone_and_not_without_a_rate():
    params = {"body": jnp.ones(2), "classifier": {"kernel": jnp.zeros((3, 4))}}

    def classify(params, features):
        return features @ params["classifier"]["kernel"]

    moments, key = ClassMoments(*map(jnp.asarray, pool([np.arange(30)]))), make_key(0)
    trained = calibrate_head(classify, params, moments, key, num_draws=40, learning_rate=0.01, batch_size=7, epochs=3)
    assert is_equal(trained["body"], params["body"])
    assert np.any(trained["classifier"]["kernel"])
    again = calibrate_head(classify, params, moments, key, num_draws=40, learning_rate=0.0, batch_size=7)
    assert is_equal(again, params)

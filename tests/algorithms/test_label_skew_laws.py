"""Laws of FedLC, FedRS, FedNTD, FedDecorr and FedDisco."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_het.algorithms import feddecorr, feddisco, fedlc, fedntd, fedrs
from fedjax_het.client.objectives._label_skew import calibrated_losses, not_true_divergence, restriction
from fedjax_het.client.objectives._representation import correlation
from fedjax_het.errors import InputError
from fedjax_het.server.weightings._discrepancy import discrepancies, discrepancy_weights
from tests.harness import difference, is_equal, train

pytestmark = pytest.mark.extended

RNG = np.random.default_rng(0)
LOGITS, OTHERS = RNG.normal(size=(2, 6, 4)).astype(np.float32)
LABELS = np.array([0, 1, 2, 0, 1, 2])
COUNTS = np.array([5.0, 40.0, 1.0, 0.0], np.float32)  # the last class is missing


@pytest.fixture(scope="module")
def fedavg():
    return train("fedavg")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("fedlc", {"tau": 0.0}),
        ("fedrs", {"alpha": 1.0}),
        ("fedntd", {"beta": 0.0}),
        ("feddecorr", {"beta": 0.0}),
        ("feddisco", {"a": 0.0, "b": 0.0}),
    ],
)
def test_a_method_without_its_idea_is_fedavg(name, options, fedavg):
    assert difference(fedavg, train(name, **options)) < 1e-6


def test_fedntd_with_one_local_step_is_fedavg_and_with_more_it_is_not(fedavg):
    assert difference(train("fedavg", steps=1), train("fedntd", steps=1, beta=5.0)) < 1e-6
    assert difference(fedavg, train("fedntd", beta=5.0)) > 1e-5


def test_not_true_divergence_sees_neither_true_logits_nor_a_common_shift():
    divergence = not_true_divergence(LOGITS, OTHERS, LABELS, 2.0)
    is_true = jax.nn.one_hot(LABELS, 4)
    again = not_true_divergence(LOGITS + 3 + 5 * is_true, OTHERS - 7 * is_true, LABELS, 2.0)
    np.testing.assert_allclose(again, divergence, rtol=1e-4, atol=1e-6)
    assert np.all(np.asarray(divergence) > 0)
    np.testing.assert_allclose(not_true_divergence(LOGITS, LOGITS + 1, LABELS, 2.0), 0, atol=1e-6)
    gradient = jax.grad(lambda z: not_true_divergence(z, OTHERS, LABELS, 2.0).sum())(LOGITS)
    assert np.all(np.asarray(gradient)[np.arange(6), LABELS] == 0)
    np.testing.assert_allclose(gradient.sum(axis=1), 0, atol=1e-6)


def test_not_true_divergence_with_two_classes_is_exactly_zero():
    value, gradient = jax.value_and_grad(lambda z: not_true_divergence(z, OTHERS[:, :2], LABELS % 2, 1.0).sum())(
        jnp.asarray(LOGITS[:, :2])
    )
    assert value == 0 and not np.any(gradient)


def test_not_true_divergence_at_a_high_temperature_is_half_a_variance():
    tau, kept = 100.0, [np.delete(z - g, y) for z, g, y in zip(LOGITS, OTHERS, LABELS, strict=True)]
    with jax.enable_x64(True):
        args = (jnp.asarray(LOGITS, float), jnp.asarray(OTHERS, float), LABELS)
        ours = tau**2 * not_true_divergence(*args, tau)
    np.testing.assert_allclose(ours, [np.var(values) / 2 for values in kept], rtol=0.05)


def test_printed_calibration_is_minus_the_logit_of_the_inclusive_probability():
    inclusive, printed = (calibrated_losses(LOGITS, LABELS, COUNTS, 0.5, form) for form in ("inclusive", "printed"))
    probability = np.exp(-np.asarray(inclusive))
    np.testing.assert_allclose(printed, inclusive + np.log(1 - probability), rtol=1e-3, atol=1e-5)


def test_calibration_gives_missing_classes_no_gradient_and_rare_ones_a_larger_loss():
    def loss(logits, counts=COUNTS):
        return calibrated_losses(logits, LABELS, counts, 0.5).sum()

    assert not np.any(jax.grad(loss)(LOGITS)[:, 3])
    assert loss(LOGITS, COUNTS - np.array([4, 0, 0, 0])) > loss(LOGITS)
    equal = calibrated_losses(LOGITS, LABELS, np.full(4, 7.0), 0.5)
    np.testing.assert_allclose(equal, calibrated_losses(LOGITS, LABELS, COUNTS, 0.0), rtol=1e-5)  # plain


def test_calibration_of_a_client_with_one_class_is_zero():
    for form in ("inclusive", "printed"):
        loss = jax.value_and_grad(lambda z, f=form: calibrated_losses(z, 0 * LABELS, np.eye(4)[0], 0.5, f).sum())
        value, gradient = loss(jnp.asarray(LOGITS))
        assert value == 0 and not np.any(gradient)


def test_restrictions_agree_where_present_classes_are_equally_frequent():
    even = np.array([6.0, 6.0, 0.0, 6.0])
    np.testing.assert_allclose(restriction(even, 0.3), restriction(even, 0.3, "share"))
    np.testing.assert_allclose(restriction(COUNTS, 0.3), [1, 1, 1, 0.3], rtol=1e-6)
    np.testing.assert_allclose(restriction(COUNTS, 0.3, "share"), restriction(9 * COUNTS, 0.3, "share"), rtol=1e-6)
    assert restriction(COUNTS, 0.3, "share")[0] < 0.5


def test_correlation_is_bounded_and_blind_to_scales_and_shifts_of_features():
    features, mask = RNG.normal(size=(9, 4)), np.ones(9)
    with jax.enable_x64(True):
        value = correlation(jnp.asarray(features), mask)
        changed = correlation(jnp.asarray(features * [1, -3, 20, 5] + [0, 4, -1, 2]), mask)
        assert changed == pytest.approx(float(value), rel=1e-6)
        collinear = correlation(jnp.asarray(np.outer(features[:, 0], [1, -2, 3, 4])), mask)
        assert collinear == pytest.approx(8**2 / 9, rel=1e-6)
        assert 0 < value < 8**2 / 9
        gradient = jax.grad(lambda x: correlation(x, mask))(jnp.asarray(features))
        np.testing.assert_allclose(gradient.sum(axis=0), 0, atol=1e-12)


def test_the_correlation_of_no_example_is_zero():
    for mask in (np.zeros(3), np.array([0.0, 1.0, 0.0])):
        value, gradient = jax.value_and_grad(correlation)(jnp.asarray(LOGITS[:3]), jnp.asarray(mask, jnp.float32))
        assert value == 0 and not np.any(gradient)


@pytest.mark.parametrize(
    ("build", "options"),
    [
        (fedlc, {"tau": -1.0}),
        (fedlc, {"form": "other"}),
        (fedrs, {"alpha": 1.5}),
        (fedntd, {"tau": 0.0}),
        (feddecorr, {"form": "other"}),
        (feddisco, {"target": [0.5, 0.0]}),
    ],
)
def test_settings_out_of_range_are_refused(build, options):
    with pytest.raises(InputError, match=next(iter(options))):
        build(**options)


@pytest.mark.slow
def test_the_released_presets_differ_from_the_printed_rules():
    assert not is_equal(train("fedrs", rounds=1), train("fedrs", rounds=1, preset="released"))


def test_discrepancy_weights_favour_near_clients_and_leave_absent_ones_out():
    counts = np.array([[5.0, 5], [9, 1], [5, 5], [0, 10]], np.float32)
    sizes, is_present = counts.sum(axis=1), np.array([True, True, False, True])
    for metric in ("kl", "l2", "l1", "cosine"):
        distances = discrepancies(counts, np.array([0.5, 0.5]), is_present, metric)
        weights = np.asarray(discrepancy_weights(sizes, distances, is_present, 0.5, 0.1))
        assert weights.sum() == pytest.approx(1) and weights[2] == 0
        assert weights[0] > weights[1] > weights[3] >= 0
        again = discrepancies(7 * counts, np.array([0.5, 0.5]), is_present, metric)
        np.testing.assert_allclose(discrepancy_weights(7 * sizes, again, is_present, 0.5, 0.1), weights, rtol=1e-5)
    flat = discrepancy_weights(sizes, np.zeros(4), is_present, 0.0, 1e6)
    np.testing.assert_allclose(flat, np.array([1, 1, 0, 1]) / 3, rtol=1e-5)
    none = discrepancy_weights(sizes, np.ones(4), is_present, 5.0, 0.0)  # nothing is positive
    np.testing.assert_allclose(none, np.array([1, 1, 0, 1]) / 3, rtol=1e-6)


def test_a_target_for_other_classes_is_refused():
    with pytest.raises(InputError, match=r"^target: expected one share for each of the 3 classes, got 2"):
        train("feddisco", rounds=1, target=[0.5, 0.5])

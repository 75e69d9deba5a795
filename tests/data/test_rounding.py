"""Dirichlet proportions and their rounding to whole numbers."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedjax_het.data import rounding


@pytest.mark.parametrize("alpha", [1e-320, 1e-6, 1e-3, 0.5, 1.0, 1e6, 1e300])
def test_dirichlet_proportions_are_finite_for_any_alpha(alpha):
    draws = rounding.sample_dirichlet(alpha, (50, 7), np.random.default_rng(0))
    assert np.isfinite(draws).all()
    np.testing.assert_allclose(draws.sum(axis=1), 1.0)


@pytest.mark.parametrize("alpha", [0.05, 0.7, 4.0])
def test_dirichlet_has_the_moments_of_the_distribution(alpha):
    draws = rounding.sample_dirichlet(alpha, (40_000, 4), np.random.default_rng(1))
    variance = (1 / 4) * (3 / 4) / (4 * alpha + 1)
    np.testing.assert_allclose(draws.mean(axis=0), 0.25, atol=0.01)
    np.testing.assert_allclose(draws.var(axis=0), variance, rtol=0.05)


@given(st.lists(st.floats(1e-3, 1), min_size=1, max_size=20), st.integers(0, 500), st.floats(0, 0.999))
def test_rounding_preserves_the_sum_and_is_within_one(shares, total, start):
    shares = np.array(shares) / np.sum(shares)
    counts = rounding.round_preserving_sum(shares, total, start)
    assert counts.sum() == total
    assert (counts >= 0).all()
    assert (np.abs(counts - shares * total) < 1 + 1e-6).all()


@given(st.integers(1, 12), st.integers(1, 8), st.sampled_from([1e-6, 0.1, 1.0, 1e6]), st.integers(0, 99))
def test_quotas_and_supplies_are_met(num_clients, num_classes, alpha, seed):
    rng = np.random.default_rng(seed)
    supplies = rng.integers(0, 40, num_classes)
    quotas = rounding.split_evenly(supplies.sum(), num_clients)
    counts = rounding.fill_quotas(
        rounding.sample_log_dirichlet(alpha, (num_clients, num_classes), rng), quotas, supplies
    )
    assert (counts >= 0).all()
    np.testing.assert_array_equal(counts.sum(axis=1), quotas)
    np.testing.assert_array_equal(counts.sum(axis=0), supplies)


def test_proportions_that_the_supplies_allow_are_met():
    wishes = np.array([[0.5, 0.25, 0.25], [0.25, 0.5, 0.25], [0.25, 0.25, 0.5]])
    counts = rounding.fill_quotas(np.log(wishes), np.full(3, 8), np.full(3, 8))
    np.testing.assert_array_equal(counts, wishes * 8)


def test_a_scarce_class_is_divided_in_proportion_to_the_requests():
    # Both request only class 0, 8 and 4 of its 6 examples: they get 4 and 2, and the rest from class 1.
    counts = rounding.fill_quotas(np.array([[0.0, -1e6], [0.0, -1e6]]), np.array([8, 4]), np.array([6, 6]))
    np.testing.assert_array_equal(counts, [[4, 4], [2, 2]])


def test_seats_are_proportional_within_their_bounds():
    np.testing.assert_array_equal(rounding.apportion(np.array([60, 30, 10]), 10, np.full(3, 10)), [6, 3, 1])
    np.testing.assert_array_equal(rounding.apportion(np.array([98, 1, 1]), 6, np.full(3, 4)), [4, 1, 1])


def test_the_minimum_is_taken_from_the_largest_part():
    parts = rounding.enforce_minimum([np.arange(5), np.arange(5, 8), np.zeros(0, int)], minimum=2)
    assert [len(part) for part in parts] == [3, 3, 2]
    np.testing.assert_array_equal(np.sort(np.concatenate(parts)), np.arange(8))

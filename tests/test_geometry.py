"""Gram-matrix geometry, compared with the vectors themselves."""

from typing import get_args

import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_het import geometry

STACK = np.random.default_rng(0).normal(size=(4, 9))
STACK[2] = 0
GRAM = jnp.asarray(STACK @ STACK.T)
LENGTHS = np.linalg.norm(STACK, axis=1)


def test_lengths_are_those_of_the_vectors():
    np.testing.assert_allclose(geometry.lengths(GRAM), LENGTHS, rtol=1e-6)


def test_cosines_are_zero_for_a_zero_vector():
    wanted = GRAM / np.outer(LENGTHS, LENGTHS + (LENGTHS == 0)).clip(1e-9)
    np.testing.assert_allclose(geometry.cosines(GRAM), np.where(np.outer(LENGTHS, LENGTHS) > 0, wanted, 0), atol=1e-6)


def test_a_projection_is_the_mean_of_both_projections():
    shadows = (STACK[0] @ STACK[1]) / LENGTHS[1], (STACK[0] @ STACK[1]) / LENGTHS[0]
    assert geometry.projections(GRAM)[0, 1] == pytest.approx(np.mean(shadows), rel=1e-5)
    assert not np.any(geometry.projections(GRAM)[2])


def test_agreement_sums_the_other_clients_unless_the_mode_includes_the_client():
    present = jnp.ones(4, bool)
    mean, total, including = (geometry.agreement(GRAM, present, mode) for mode in get_args(geometry.Agreement))
    np.testing.assert_allclose(total, 3 * mean, rtol=1e-6)
    np.testing.assert_allclose(including, total + LENGTHS, rtol=1e-5)


@pytest.mark.extended
def test_agreement_ignores_absent_clients():
    padded = jnp.pad(GRAM, ((0, 2), (0, 2)))
    present = jnp.array([True] * 4 + [False] * 2)
    alone = geometry.agreement(GRAM, jnp.ones(4, bool))
    np.testing.assert_allclose(geometry.agreement(padded, present)[:4], alone, rtol=1e-6)
    assert not np.any(geometry.agreement(padded, present)[4:])


@pytest.mark.extended
def test_a_single_vector_has_no_agreement():
    assert geometry.agreement(GRAM[:1, :1], jnp.ones(1, bool)) == 0


def test_dominance_is_finite_without_loss():
    assert np.all(np.isfinite(geometry.dominance(jnp.array([1.0, -1.0, 0.0]), jnp.zeros(3))))


def test_the_gram_matrix_of_combinations_is_that_of_the_combined_vectors():
    coefficients = np.random.default_rng(1).normal(size=(4, 4))
    edited = coefficients @ STACK
    np.testing.assert_allclose(geometry.combined_gram(GRAM, jnp.asarray(coefficients)), edited @ edited.T, atol=1e-4)


def test_no_vector_conflicts_with_itself_or_with_zero():
    conflicts = np.asarray(geometry.is_conflict(-jnp.abs(GRAM)))
    assert not conflicts.diagonal().any() and not conflicts[2].any()
    assert conflicts[0, 1] and conflicts[1, 0]

"""Measures of conflict on three vectors that can be checked by hand."""

import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_het.diagnostics import conflict
from fedjax_het.diagnostics._updates import num_conflicts
from fedjax_het.errors import InputError

STACK = np.array([[1.0, 0.0], [-1.0, 1.0], [0.0, -2.0]])
GRAM = jnp.asarray(STACK @ STACK.T)


@pytest.mark.extended
def test_conflict_measures_match_those_computed_by_hand():
    measured = conflict(GRAM)
    root = np.sqrt(2)
    assert measured.num_conflicts == 2
    assert measured.mean_cosine == pytest.approx((-1 / root - 1 / root + 0) / 3, rel=1e-5)
    np.testing.assert_allclose(measured.agreement[0], -(1 + 1 / root) / 2 / 2, rtol=1e-5)
    np.testing.assert_allclose(measured.relative_agreement, measured.agreement / ((1 + root + 2) / 3), rtol=1e-5)
    np.testing.assert_allclose(measured.dominance, measured.agreement)


@pytest.mark.extended
def test_dominance_is_divided_by_losses():
    losses = jnp.array([1.0, 2.0, 4.0])
    np.testing.assert_allclose(conflict(GRAM, losses).dominance, conflict(GRAM).agreement / losses)


@pytest.mark.extended
def test_absent_clients_do_not_change_the_measures():
    padded, present = jnp.pad(GRAM, ((0, 1), (0, 1))), jnp.array([True, True, True, False])
    full, wider = conflict(GRAM), conflict(padded, is_present=present)
    for name in ("mean_cosine", "num_conflicts"):
        assert getattr(full, name) == getattr(wider, name)
    np.testing.assert_allclose(wider.relative_agreement[:3], full.relative_agreement)


def test_conflicts_after_an_edit_ignore_rounding():
    """The part of client 1 along client 0 is removed; the pair stays without conflict despite rounding errors."""
    coefficients = jnp.eye(3).at[1, 0].set(1.0)
    assert num_conflicts(GRAM, coefficients) == 1
    assert num_conflicts(jnp.asarray(GRAM).at[0, 1].add(-1e-16).at[1, 0].add(-1e-16), coefficients) == 1
    assert num_conflicts(GRAM, jnp.zeros((3, 3))) == 0


def test_an_unknown_mode_is_refused_with_the_nearest():
    with pytest.raises(InputError, match="Did you mean 'mean_excl'"):
        conflict(GRAM, mode="mean_exc")

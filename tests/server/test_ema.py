import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedjax_het import tree
from fedjax_het.engine.parallel.update_stack import StackedUpdates
from fedjax_het.errors import InputError
from fedjax_het.server.summaries import ema, head
from fedjax_het.types import ServerView

HEAD = {"kernel": jnp.zeros((2,))}
SHARED = {"params": {"classifier": HEAD, "dense": {"kernel": jnp.zeros((4,))}}}
TOTALS, WEIGHTS = np.array([[2.0, 4.0], [1.0, 0.0], [9.0, 9.0]]), np.array([2.0, 1.0, 3.0])
PRESENT = np.array([True, True, False])


def after(rounds, decay, totals=TOTALS, weights=WEIGHTS, is_present=PRESENT):
    summary = ema(decay, like=head)
    value = summary.init(None, SHARED, 3, 3)
    reports = {"total": {"kernel": jnp.asarray(totals)}, "weight": jnp.asarray(weights)}
    present = tree.where(jnp.asarray(is_present), reports, tree.zeros_like(reports))
    view = ServerView(None, None, None, jnp.asarray(is_present), 3, None)
    for _ in range(rounds):
        value = summary.update(value, StackedUpdates(present), view)
    return np.asarray(value["mean"]["kernel"]), float(value["mass"])


def test_it_begins_at_zero_with_a_twentieth():
    mean, mass = after(1, 0.95)
    np.testing.assert_allclose(mean, 0.05 * np.array([1.0, 4 / 3]), rtol=1e-6)
    assert mass == pytest.approx(0.05)


@settings(max_examples=15, deadline=None)
@given(st.floats(0, 0.99), st.integers(1, 4))
def test_mean_over_mass_of_a_constant_is_the_constant(decay, rounds):
    mean, mass = after(rounds, decay)
    np.testing.assert_allclose(mean / mass, [1.0, 4 / 3], rtol=1e-4)
    assert mass == pytest.approx(1 - decay**rounds, rel=1e-4)


def test_decay_zero_is_this_round_and_one_is_never():
    np.testing.assert_allclose(after(3, 0.0)[0], [1.0, 4 / 3], rtol=1e-6)
    np.testing.assert_array_equal(after(3, 1.0)[0], [0, 0])


@settings(max_examples=15, deadline=None)
@given(st.floats(-5, 5, width=32))
def test_it_is_linear_in_the_totals(factor):
    np.testing.assert_allclose(after(2, 0.5, factor * TOTALS)[0], factor * after(2, 0.5)[0], rtol=1e-4, atol=1e-5)


def test_nobody_changes_nothing():
    assert after(2, 0.5, is_present=np.zeros(3, bool))[1] == 0
    assert after(2, 0.5, weights=np.zeros(3))[1] == 0


def test_what_cannot_work_is_refused():
    with pytest.raises(InputError, match=r"decay.*not 1\.5"):
        ema(1.5, like=head)
    with pytest.raises(InputError, match="keeps personal"):
        ema(0.9, like=head).init(None, {"params": {"dense": HEAD}}, 3, 3)

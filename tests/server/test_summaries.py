"""Moving averages and mean directions of what clients report."""

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedjax_het import tree
from fedjax_het.engine.parallel.update_stack import StackedUpdates
from fedjax_het.errors import InputError
from fedjax_het.server.summaries import ema, head, mean_direction
from fedjax_het.types import ServerView, Upload

HEAD = {"kernel": jnp.zeros((2,))}
SHARED = {"params": {"classifier": HEAD, "dense": {"kernel": jnp.zeros((4,))}}}
TOTALS, WEIGHTS = np.array([[2.0, 4.0], [1.0, 0.0], [9.0, 9.0]]), np.array([2.0, 1.0, 3.0])
PRESENT = np.array([True, True, False])


def average(rounds, decay, totals=TOTALS, weights=WEIGHTS, is_present=PRESENT):
    summary = ema(decay, like=head)
    value = summary.init(None, SHARED, 3, 3)
    reports = {"total": {"kernel": jnp.asarray(totals)}, "weight": jnp.asarray(weights)}
    present = tree.where(jnp.asarray(is_present), reports, tree.zeros_like(reports))
    view = ServerView(None, None, None, jnp.asarray(is_present), 3, None)
    for _ in range(rounds):
        value = summary.update(value, StackedUpdates(present), view)
    return np.asarray(value["mean"]["kernel"]), float(value["mass"])


def test_a_moving_average_starts_from_zero():
    mean, mass = average(1, 0.95)
    np.testing.assert_allclose(mean, 0.05 * np.array([1.0, 4 / 3]), rtol=1e-6)
    assert mass == pytest.approx(0.05)


@settings(max_examples=15, deadline=None)
@given(st.just(0.0) | st.floats(1e-30, 0.99), st.integers(1, 4))
def test_mean_over_mass_of_a_constant_is_the_constant(decay, rounds):
    mean, mass = average(rounds, decay)
    np.testing.assert_allclose(mean / mass, [1.0, 4 / 3], rtol=1e-4)
    assert mass == pytest.approx(1 - decay**rounds, rel=1e-4)


def test_decay_zero_keeps_this_round_only_and_decay_one_nothing():
    np.testing.assert_allclose(average(3, 0.0)[0], [1.0, 4 / 3], rtol=1e-6)
    np.testing.assert_array_equal(average(3, 1.0)[0], [0, 0])


@settings(max_examples=15, deadline=None)
@given(st.floats(-5, 5, width=32))
def test_a_moving_average_is_linear_in_the_totals(factor):
    np.testing.assert_allclose(average(2, 0.5, factor * TOTALS)[0], factor * average(2, 0.5)[0], rtol=1e-4, atol=1e-5)


def test_without_reports_a_moving_average_is_unchanged():
    assert average(2, 0.5, is_present=np.zeros(3, bool))[1] == 0
    assert average(2, 0.5, weights=np.zeros(3))[1] == 0


def test_a_decay_out_of_range_and_a_personal_head_are_refused():
    with pytest.raises(InputError, match=r"decay.*not 1\.5"):
        ema(1.5, like=head)
    with pytest.raises(InputError, match="is personal"):
        ema(0.9, like=head).init(None, {"params": {"dense": HEAD}}, 3, 3)


UPDATES = np.array([[-1.0, 2.0], [4.0, 0.0], [8.0, -8.0]], np.float32)
REACHES = jnp.array([0.5, 2.0, 4.0])
COUNTS = jnp.array([1.0, 3.0, 4.0])


def direction(is_present=(True, True, True), reaches=REACHES, **options):
    summary, shared = mean_direction(**options), {"params": {"w": jnp.zeros(2)}}
    uploads = Upload({"params": {"w": jnp.asarray(UPDATES)}}, {"momentum": reaches}, COUNTS, jnp.ones(3))
    uploads = tree.where(jnp.array(is_present), uploads, tree.zeros_like(uploads))
    updates, reports = StackedUpdates(uploads.update), StackedUpdates(uploads.reports["momentum"])
    view = ServerView(None, uploads, jnp.arange(3), jnp.array(is_present), 9, updates)
    return np.asarray(summary.update(summary.init(None, shared, 9, 3), reports, view)["w"])


def test_normalisation_client_divides_each_update_by_the_clients_steps():
    np.testing.assert_allclose(direction(), -(UPDATES / np.asarray(REACHES)[:, None]).mean(axis=0), rtol=1e-6)


def test_normalisation_cohort_divides_the_mean_update_by_the_mean_steps():
    wanted = -UPDATES.mean(axis=0) / np.mean(REACHES)
    np.testing.assert_allclose(direction(normalisation="cohort"), wanted, rtol=1e-6)


@pytest.mark.parametrize("normalisation", ["client", "cohort"])
def test_with_equal_steps_both_normalisations_agree(normalisation):
    ours = direction(reaches=jnp.full(3, 0.5), normalisation=normalisation)
    np.testing.assert_allclose(ours, -2 * UPDATES.mean(axis=0), rtol=1e-6)


def test_weighting_samples_weighs_directions_by_examples():
    wanted = -np.asarray(COUNTS) / 8 @ (UPDATES / np.asarray(REACHES)[:, None])
    np.testing.assert_allclose(direction(weighting="samples"), wanted, rtol=1e-6)


@pytest.mark.parametrize("normalisation", ["client", "cohort"])
def test_absent_and_idle_clients_are_left_out(normalisation):
    ours = direction((True, False, True), jnp.array([0.5, 2.0, 0.0]), normalisation=normalisation)
    np.testing.assert_allclose(ours, -UPDATES[0] / 0.5, rtol=1e-6)


def test_without_steps_the_mean_direction_is_zero():
    assert not np.any(direction(reaches=jnp.zeros(3)))


def test_unknown_options_are_refused_with_the_nearest():
    with pytest.raises(InputError, match=r"normalisation: unknown option 'clients'\. Did you mean 'client'"):
        mean_direction(normalisation="clients")
    with pytest.raises(InputError, match="weighting: unknown"):
        mean_direction("equal")

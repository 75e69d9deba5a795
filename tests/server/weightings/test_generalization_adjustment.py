import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedjax_het.errors import InputError
from fedjax_het.server.weightings import generalization_adjustment
from fedjax_het.server.weightings._generalization_adjustment import adjust_weights
from fedjax_het.types import Broadcast, ServerView, Upload

clients = st.lists(st.tuples(st.integers(0, 8), st.integers(-40, 40), st.booleans()), min_size=1, max_size=7).filter(
    lambda rows: sum(row[0] for row in rows) > 0
)


def adjust(weights, gaps, size, is_adjusted=None, **options) -> np.ndarray:
    is_adjusted = np.ones(len(weights), bool) if is_adjusted is None else is_adjusted
    adjust_all = jax.jit(functools.partial(adjust_weights, **options))
    return np.asarray(adjust_all(jnp.asarray(weights), jnp.asarray(gaps), jnp.asarray(is_adjusted), size))


@pytest.mark.slow
@given(clients=clients, size=st.floats(0, 3), factor=st.floats(0.1, 10), centre=st.booleans(), seed=st.integers(0, 5))
@settings(deadline=None, max_examples=60)
def test_adjusted_weights_are_shares_and_depend_on_relative_gaps_only(clients, size, factor, centre, seed):
    counts, gaps, chosen = (np.array(column) for column in zip(*clients, strict=True))
    weights, gaps = counts / counts.sum(), gaps / 8.0
    ours = adjust(weights, gaps, size, chosen, centre=centre)
    assert np.all(ours >= 0)
    assert ours.sum() == pytest.approx(1, abs=1e-5)
    np.testing.assert_allclose(ours[~chosen], weights[~chosen], rtol=1e-6)
    np.testing.assert_allclose(adjust(weights, factor * gaps, size, chosen, centre=centre), ours, atol=1e-4)
    order = np.random.default_rng(seed).permutation(len(gaps))
    again = adjust(weights[order], gaps[order], size, chosen[order], centre=centre)
    np.testing.assert_allclose(again, ours[order], atol=1e-5)
    if centre:
        np.testing.assert_allclose(adjust(weights, gaps + 2.0, size, chosen), ours, atol=1e-4)
        if chosen.any():
            worst = np.argmax(np.where(chosen, gaps, -np.inf))
            held, total = weights[chosen].sum(), sum_before_shares(weights[chosen], gaps[chosen], size)
            assert ours[worst] * total >= held * weights[worst] - 1e-5  # total is held unless a weight is cut at 0


def sum_before_shares(weights, gaps, size) -> float:
    """The sum of the weights after the step and the cut at 0; deviations sum to 0, so the cut alone can raise it."""
    deviations = gaps - gaps.mean()
    largest = np.abs(deviations).max()
    return np.maximum(weights + size * deviations / (largest or 1), 0).sum()


def test_the_client_with_the_largest_gap_can_lose_weight_by_clipping():
    """Before shares are taken: 0 - 1 is cut to 0, 0 + 2/7 and 1 + 5/7, of the sum 2."""
    np.testing.assert_allclose(adjust([0.0, 0.0, 1.0], [0.0, 3.0, 4.0], 1.0), [0, 1 / 7, 6 / 7], rtol=1e-6)


@pytest.mark.parametrize("gap", [0.0, 0.1, 1e6])
def test_equal_gaps_leave_weights_unchanged(gap):
    weights = np.array([0.2, 0.3, 0.5], np.float32)
    np.testing.assert_allclose(adjust(weights, np.full(3, gap, np.float32), 0.2), weights, rtol=1e-6)


def test_a_step_matches_weights_computed_by_hand():
    np.testing.assert_allclose(adjust([0.5, 0.5], [1.0, 3.0], 0.2), [0.3, 0.7], rtol=1e-6)
    np.testing.assert_allclose(adjust([0.5, 0.5], [1.0, 3.0], 0.3, centre=False), [6 / 14, 8 / 14], rtol=1e-6)


def test_weights_that_are_all_clipped_to_zero_become_equal():
    np.testing.assert_allclose(adjust([0.5, 0.5, 0.0], [-1.0, -1.0, -1.0], 0.9, centre=False), [1 / 3] * 3, rtol=1e-6)


def test_a_ceiling_clips_weights_beyond_it():
    gaps = [1.0, 0.0, -1.0]
    np.testing.assert_allclose(adjust([0.4, 0.4, 0.2], gaps, 2.0), [2.4 / 2.8, 0.4 / 2.8, 0], rtol=1e-6)
    np.testing.assert_allclose(adjust([0.4, 0.4, 0.2], gaps, 2.0, ceiling=1.0), [1 / 1.4, 0.4 / 1.4, 0], rtol=1e-6)


def view(round, gaps, cohort=None, is_present=None, num_clients=None) -> ServerView:
    num = len(gaps)
    cohort = jnp.arange(num) if cohort is None else jnp.asarray(cohort)
    is_present = jnp.ones(num, bool) if is_present is None else jnp.asarray(is_present)
    upload = Upload({}, {"gap": jnp.asarray(gaps)}, jnp.ones(num), jnp.ones(num))
    return ServerView(Broadcast(jnp.asarray(round), {}, {}), upload, cohort, is_present, num_clients or num, None)


def run(weighting, views):
    """The weights of each round, and what is kept in the end."""
    state, used = weighting.init({}, views[0].num_clients), []
    for round_view in views:
        weights, state = jax.jit(lambda state, view=round_view: weighting.update(state, view))(state)
        used.append(np.asarray(weights))
    return used, state


def test_the_first_report_adjusts_no_weight():
    used, _ = run(generalization_adjustment(0.3, 10), [view(0, [5.0, 0.0]), view(1, [5.0, 0.0])])
    np.testing.assert_allclose(used, [[0.5, 0.5], [0.8, 0.2]], rtol=1e-6)


@pytest.mark.parametrize(
    ("options", "factors"),
    [
        ({}, [1, 0.5, 0, 0]),
        ({"schedule": "released"}, [1.5, 1, 0.5, 0]),
        ({"schedule": "constant"}, [1, 1, 1, 1]),
        ({"scale": 0.5}, [0.5, 0.25, 0, 0]),
        ({"scale": "1/n"}, [0.5, 0.25, 0, 0]),
    ],
)
def test_the_step_follows_its_schedule_and_scale(options, factors):
    views = [view(number, [1.0, 0.0]) for number in range(5)]
    used, _ = run(generalization_adjustment(0.05, 2, **options), views)
    np.testing.assert_allclose(np.diff([weights[0] for weights in used]), 0.05 * np.array(factors), atol=1e-6)


@pytest.mark.extended
def test_absent_clients_keep_their_weights():
    everyone = view(0, [0.0] * 4)
    some = view(1, [9.0, 2.0, 1.0], cohort=[3, 0, 2], is_present=[False, True, True], num_clients=4)
    used, state = run(generalization_adjustment(0.1, 10), [everyone, some])
    np.testing.assert_allclose(used[1], [0, 0.7, 0.3], rtol=1e-6)
    np.testing.assert_allclose(state.weights, [0.35, 0.25, 0.15, 0.25], rtol=1e-6)


def test_a_client_that_joins_late_is_averaged_but_not_adjusted():
    first = view(0, [0.0, 0.0], cohort=[0, 1], num_clients=3)
    used, state = run(generalization_adjustment(0.1, 10), [first, view(1, [2.0, 1.0, 0.0])])
    np.testing.assert_allclose(used[0], [0.5, 0.5], rtol=1e-6)
    np.testing.assert_allclose(used[1], [1 / 3 + 0.1, 1 / 3 - 0.1, 1 / 3], rtol=1e-6)
    assert state.has_reported.tolist() == [True, True, True]


def test_present_clients_without_weight_count_equally():
    views = [view(0, [0.0] * 3), view(1, [3.0, 0.0, 0.0]), view(2, [1.0, 1.0], cohort=[1, 2], num_clients=3)]
    used, _ = run(generalization_adjustment(3.0, 10), views)
    np.testing.assert_allclose(used[1], [1, 0, 0], atol=1e-6)
    np.testing.assert_allclose(used[2], [0.5, 0.5], rtol=1e-6)


@pytest.mark.extended
def test_a_single_client_has_all_the_weight():
    used, _ = run(generalization_adjustment(), [view(number, [1.0]) for number in range(3)])
    np.testing.assert_array_equal(used, np.ones((3, 1)))


@pytest.mark.extended
def test_the_step_can_be_traced():
    steps = jnp.array([0.0, 0.1])
    second = jax.vmap(lambda d: run_second(generalization_adjustment(d, 10)))(steps)
    np.testing.assert_allclose(second, [[0.5, 0.5], [0.6, 0.4]], rtol=1e-6)


def run_second(weighting):
    state = weighting.update(weighting.init({}, 2), view(0, [0.0, 0.0]))[1]
    return weighting.update(state, view(1, [1.0, 0.0]))[0]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"schedule": "lineer"}, "schedule: unknown option 'lineer'. Did you mean 'linear'"),
        ({"scale": "1/N"}, "scale: unknown option '1/N'. Did you mean '1/n'"),
        ({"rounds": 0}, "rounds: must be a whole number from 1 to 2147483647, not 0"),
        ({"rounds": 2.5}, "rounds: must be a whole number"),
        ({"step": -0.1}, "step: must be a finite number of at least 0"),
        ({"ceiling": 0.0}, "ceiling: must be a finite number above 0 or None"),
    ],
)
def test_invalid_options_are_refused(options, message):
    with pytest.raises(InputError, match=message):
        generalization_adjustment(**options)

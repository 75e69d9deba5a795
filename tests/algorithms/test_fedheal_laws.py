"""Laws of FedHEAL."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_het import sharing, tree
from fedjax_het._internal.keys import make_key
from fedjax_het.client.consistency import _is_consistent, _min_count
from fedjax_het.engine.round import participation
from fedjax_het.errors import InputError
from fedjax_het.server.weightings import distance_momentum
from fedjax_het.types import Broadcast, ServerView, Upload
from tests.harness import compose, difference, federation, is_equal, run, train

pytestmark = pytest.mark.extended


def test_fedheal_without_masks_and_momentum_is_fedavg_with_equal_weights():
    plain = train("fedavg", weighting="uniform")
    assert difference(plain, train("fedheal", tau=-1.0, beta=0.0)) < 1e-6


@pytest.mark.slow
def test_fedheal_masks_by_the_clients_own_past_and_averages_over_open_masks():
    change = {"sharing": sharing.personal(sharing.HEAD)}
    round = compose("fedheal", norm="none", participation=participation.uniform(3), options={"tau": 0.4}, change=change)
    data, key = federation().data, make_key(0)
    step, state, has_closed, was_away = jax.jit(round.step_with_messages), round.init(key, data), False, False
    for _ in range(5):
        before = state
        state, metrics, told = step(before, data, key)
        cohort, shared, reports = metrics.cohort, before.server.shared["params"], told.uploads.reports
        absent = np.setdiff1d(np.arange(5), cohort)
        assert jax.tree.structure(reports["mask"]) == jax.tree.structure(shared)  # no personal leaves
        assert is_equal(*(tree.take(s.clients.memory, absent) for s in (before, state)))
        assert is_equal(*(s.server.aggregator.weights[absent] for s in (before, state)))

        old, new = (tree.take(s.clients.memory["signs"], cohort) for s in (before, state))
        counts, later = (tree.partition_like(signs.counts, shared)[1] for signs in (old, new))
        assert is_equal(new.rounds, old.rounds + 1)
        falls = tree.subtract(later, counts)  # s, 0 or 1
        for s, count, mask in zip(*map(jax.tree.leaves, (falls, counts, reports["mask"])), strict=True):
            rounds = np.asarray(tree.add_axes(old.rounds, count.ndim))
            agreeing = np.where(s == 1, count, rounds - count)
            expected = np.where(rounds > 0, agreeing / np.maximum(rounds, 1) > 0.4 + 1e-6, True)
            np.testing.assert_array_equal(mask, expected)
            has_closed |= not mask.all()
        was_away |= bool(np.any(old.rounds != old.rounds[0]))

        updates = told.uploads.update["params"]
        assert not any(np.any(u[~m]) for u, m in zip(*map(jax.tree.leaves, (updates, reports["mask"])), strict=True))
        lengths = sum(jnp.linalg.norm(u.reshape(3, -1), axis=1) for u in jax.tree.leaves(updates))
        np.testing.assert_allclose(reports["distance"], lengths, rtol=1e-5)
        weights = state.server.aggregator.weights[cohort]
        assert float(jnp.sum(weights)) == pytest.approx(1, abs=1e-6)
        for path, old_leaf in tree.leaves_by_path(shared).items():
            update, mask = (tree.leaves_by_path(leaves)[path] for leaves in (updates, reports["mask"]))
            share = np.asarray(tree.add_axes(weights, mask.ndim)) * np.asarray(mask)
            total = share.sum(axis=0)
            expected = np.sum(share / np.where(total > 0, total, 1) * np.asarray(update), axis=0)
            moved = np.asarray(tree.leaves_by_path(state.server.shared["params"])[path]) - np.asarray(old_leaf)
            np.testing.assert_allclose(moved, expected, atol=1e-6)
            assert not moved[total == 0].any()
    assert has_closed and was_away


def test_a_history_with_all_signs_flipped_gives_the_same_mask_and_ties_stay_closed():
    rng = np.random.default_rng(0)
    count, rounds, s = jnp.asarray(rng.integers(0, 11, 50), jnp.float32), jnp.float32(10), rng.random(50) < 0.5
    for tau in (0.1, 0.3, 0.7):
        limit = _min_count(tau, rounds)
        mask = _is_consistent(s, count, rounds, limit)
        assert is_equal(mask, _is_consistent(~s, 10 - count, rounds, limit))
        assert not np.any(mask[jnp.where(s, count, 10 - count) == round(10 * tau)])
    assert np.all(_is_consistent(s, count, rounds, _min_count(-0.1, rounds)))
    assert not np.any(_is_consistent(s, count, rounds, _min_count(1.0, rounds)))
    assert np.all(_is_consistent(s, jnp.zeros(50), jnp.float32(0), _min_count(1.0, jnp.float32(0))))


def weigh(weighting, distances, present=None, state=None, cohort=None):
    """(weights, state) after one report of distances; six clients."""
    size = len(distances)
    reports = {"distance": jnp.asarray(distances, jnp.float32)}
    view = ServerView(
        Broadcast(jnp.zeros((), int), {}, {}),
        Upload({}, reports, jnp.ones(size), jnp.ones(size)),
        jnp.arange(size) if cohort is None else jnp.asarray(cohort),
        jnp.ones(size, bool) if present is None else jnp.asarray(present),
        6,
        None,
    )
    return weighting.update(weighting.init({}, 6) if state is None else state, view)


def test_weights_by_distance_follow_shares_of_the_distance_alone():
    weighting, distances = distance_momentum(0.4), np.array([1.0, 3.0, 0.0, 2.0])
    weights, state = weigh(weighting, distances)
    np.testing.assert_allclose(weights, (1 / 4 + 0.4 * distances / 6) / 1.4, rtol=1e-6)
    np.testing.assert_allclose(weigh(weighting, 1e4 * distances)[0], weights, rtol=1e-6)
    again, after = weigh(weighting, distances[::-1], state=state, cohort=[3, 2, 1, 0])
    np.testing.assert_allclose(again[::-1], weigh(weighting, distances, state=state)[0], rtol=1e-6)
    assert float(jnp.sum(again)) == pytest.approx(1, abs=1e-6)
    assert np.all(weigh(weighting, np.zeros(4), state=after)[0] == after.weights[:4])  # no update, no change
    equal = distance_momentum(0.0)
    np.testing.assert_allclose(weigh(equal, distances, state=weigh(equal, distances)[1])[0], 0.25)
    released, kept = weigh(distance_momentum(0.4, normalised=False), distances)
    np.testing.assert_allclose(released, weights, rtol=1e-6)
    assert float(jnp.sum(kept.weights)) == pytest.approx(1.4, rel=1e-6)


def test_absent_clients_keep_their_weights_and_their_distances_count_where_that_is_asked():
    for counts_absent in (False, True):
        weighting = distance_momentum(0.5, counts_absent=counts_absent)
        _, state = weigh(weighting, [1.0, 1.0, 6.0])
        weights, after = weigh(weighting, [1.0, 3.0, 99.0], present=[True, True, False], state=state)
        assert all(float(new[2]) == float(old[2]) for new, old in zip(after[:3], state[:3], strict=True))
        changes = 0.5 * np.asarray(state.changes[:2]) + 0.5 * np.array([1, 3]) / (10 if counts_absent else 4)
        grown = np.asarray(state.weights[:2]) + changes
        np.testing.assert_allclose(weights, [*(grown / grown.sum()), 0], rtol=1e-6)


@pytest.mark.parametrize(("missing", "reader"), [("mask", "masked_mean"), ("distance", "distance_momentum")])
def test_a_report_that_nobody_sends_is_named(missing, reader):
    reports = {name: lambda problem, view: jnp.zeros(()) for name in ("mask", "distance") if name != missing}
    with pytest.raises(InputError, match=f"{reader}.*reads reports\\['{missing}'\\]"):
        run(compose("fedheal", change={"reports": reports}), rounds=1)

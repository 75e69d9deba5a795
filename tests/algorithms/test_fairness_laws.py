"""Laws of q-FFL, AFL, TERM, FedMGDA+, PropFair and FedFV."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_het import tree
from fedjax_het._internal.keys import make_key
from fedjax_het.server.aggregators import common_descent, lipschitz_mean, ordered_projection
from fedjax_het.server.weightings import agnostic, released_tilt, tilted
from tests.golden.replay import aggregate
from tests.harness import difference, train
from tests.views import server_view

LOSSES = np.array([0.5, 2.0, 1.0, 0.1], np.float32)


def weigh(weighting, losses=LOSSES, state=None, present=None, cohort=None, num_clients=None):
    """(weights, new state) of a round."""
    num_clients = num_clients or len(losses)
    state = weighting.init({}, num_clients) if state is None else state
    view = server_view(len(losses), {"loss": jnp.asarray(losses)})
    view = view._replace(
        num_clients=num_clients,
        cohort=view.cohort if cohort is None else jnp.asarray(cohort),
        is_present=view.is_present if present is None else jnp.asarray(present),
    )
    weights, state = weighting.update(state, view)
    return np.asarray(weights), state


def step(aggregator, updates, losses=LOSSES, **reports):
    reports = {"loss": jnp.asarray(losses[: len(updates)]), **reports}
    update, _ = aggregate(aggregator, {"params": {"w": np.asarray(updates, np.float32)}}, None, reports)
    return np.asarray(update["params"]["w"])


@pytest.mark.extended
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("qffl", {"q": 0.0}),
        ("term", {"t": 0.0}),
        ("afl", {"lambda_learning_rate": 0.0}),
        ("propfair", {"base": 1e4, "learning_rate": 0.05 * 1e4, "weighting": "uniform"}),
    ],
)
def test_without_its_idea_a_fair_method_is_fedavg_with_equal_weights(name, options):
    assert difference(train("fedavg", weighting="uniform"), train(name, **options)) < 2e-4


def test_a_constant_added_to_all_losses_does_not_change_tilted_weights_nor_overflow():
    weights, _ = weigh(tilted(2.0))
    np.testing.assert_allclose(weigh(tilted(2.0), LOSSES + 500)[0], weights, rtol=1e-3)
    assert weights.sum() == pytest.approx(1) and np.argmax(weights) == 1
    assert np.argmax(weigh(tilted(-2.0))[0]) == 3
    np.testing.assert_allclose(weigh(tilted(15.0, kind="power"), LOSSES * 1e3)[0].sum(), 1, rtol=1e-6)
    assert not weigh(tilted(1.0), present=np.zeros(4, bool))[0].any()


def test_the_released_tilt_begins_with_twice_the_mean_over_the_cohort():
    weights, state = weigh(released_tilt(0.0))
    np.testing.assert_allclose(weights, 2 / 16)
    for _ in range(30):
        weights, state = weigh(released_tilt(0.0), state=state)
    np.testing.assert_allclose(weights, 1 / 16, rtol=1e-5)


@pytest.mark.extended
def test_with_one_client_a_power_shortens_the_step_and_a_tilt_does_not():
    update, movement = np.array([[3.0, 4.0]]), jnp.array([25 / 0.1])
    ours = step(lipschitz_mean(2.0), update, np.array([0.5], np.float32), movement=movement)
    np.testing.assert_allclose(ours, update[0] / (1 + 2 * 250 / 0.5), rtol=1e-5)
    assert weigh(tilted(3.0), LOSSES[:1])[0] == 1 and weigh(agnostic(), LOSSES[:1])[0] == 1
    np.testing.assert_allclose(step(ordered_projection(), update), update[0], rtol=1e-6)


def test_a_client_without_loss_does_not_count_in_a_power():
    updates, movement = np.array([[1.0, 0.0], [0.0, 1.0]]), jnp.array([0.0, 10.0])
    ours = step(lipschitz_mean(0.5), updates, np.array([0.0, 1.0], np.float32), movement=movement)
    assert np.isfinite(ours).all() and abs(ours[0]) < 1e-4 < ours[1]


# ---- AFL -------------------------------------------------------------------------------------------------------------
def test_equal_losses_leave_lambda_alone_and_others_move_it_to_the_worst_client():
    state = None
    for _ in range(5):
        weights, state = weigh(agnostic(0.3), np.full(4, 0.7, np.float32), state)
    np.testing.assert_allclose(state.weights, 0.25, atol=1e-6)
    for _ in range(30):
        weights, state = weigh(agnostic(0.3), state=state)
    np.testing.assert_allclose(weights, [0, 1, 0, 0], atol=1e-6)


def test_lambda_before_or_after_the_average_differ_by_a_round():
    _, state = weigh(agnostic(0.1))
    before, _ = weigh(agnostic(0.1, order="before"))
    np.testing.assert_allclose(weigh(agnostic(0.1))[0], 0.25)
    np.testing.assert_allclose(before, state.weights, rtol=1e-6)


@pytest.mark.extended
def test_lambda_of_clients_that_never_reported_is_an_equal_share():
    weighting, losses = agnostic(0.2), LOSSES[:2]
    weights, state = weigh(weighting, losses, cohort=[4, 1], num_clients=5)
    np.testing.assert_allclose(weights, 0.5)
    assert float(state.weights.sum()) == pytest.approx(2 / 5) and not np.delete(state.weights, [1, 4]).any()
    _, after = weigh(weighting, losses, state, present=[True, False], cohort=[0, 3], num_clients=5)
    assert float(after.weights.sum()) == pytest.approx(3 / 5)
    np.testing.assert_array_equal(after.losses, [0.5, 2.0, 0, 0, 0.5])
    np.testing.assert_array_equal(after.has_reported, [True, True, False, False, True])


def test_a_cohort_without_any_lambda_leaves_the_model_alone():
    weighting, state = agnostic(10.0), None
    for _ in range(3):
        _, state = weigh(weighting, state=state)
    weights, _ = weigh(weighting, LOSSES[2:], state, cohort=[2, 3], num_clients=4)
    assert not weights.any()


# ---- directions ------------------------------------------------------------------------------------------------------
@pytest.mark.extended
def test_a_common_descent_direction_agrees_with_every_client_and_ignores_lengths():
    updates = np.random.default_rng(0).normal(size=(4, 6)).astype(np.float32)
    direction = step(common_descent(1.0), updates)
    units = updates / np.linalg.norm(updates, axis=1, keepdims=True)
    assert np.all(units @ direction > direction @ direction - 1e-5)
    np.testing.assert_allclose(step(common_descent(1.0), updates * [[5.0], [0.1], [1.0], [1e3]]), direction, atol=1e-5)
    np.testing.assert_allclose(step(common_descent(0.0), updates), units.mean(axis=0), atol=1e-6)


@pytest.mark.extended
def test_opposite_clients_rest_and_zero_updates_are_left_out():
    updates = np.array([[1.0, 2.0], [-2.0, -4.0]])
    np.testing.assert_allclose(step(common_descent(1.0), updates), 0, atol=1e-6)
    ours = step(common_descent(0.1), np.array([[3.0, 0.0], [0.0, 0.0]]))
    np.testing.assert_allclose(ours, [1, 0], atol=1e-6)
    assert not step(common_descent(), np.zeros((3, 2))).any()
    assert not step(ordered_projection(), np.zeros((3, 2))).any()


@pytest.mark.extended
def test_without_conflicts_fedfv_is_the_mean_and_otherwise_has_its_length():
    rng = np.random.default_rng(1)
    updates = np.abs(rng.normal(size=(4, 6)))
    np.testing.assert_allclose(step(ordered_projection(), updates), updates.mean(axis=0), rtol=1e-5)
    updates = rng.normal(size=(4, 6))
    for tau in (0, 1, 3):
        ours = step(ordered_projection(0.25, tau), updates)
        assert np.linalg.norm(ours) == pytest.approx(np.linalg.norm(updates.mean(axis=0)), rel=1e-5)
    plain = step(ordered_projection(1.0, 0), updates)  # everybody keeps its update
    np.testing.assert_allclose(plain, updates.mean(axis=0), rtol=1e-5)


@pytest.mark.slow
def test_propfair_scales_gradients_with_the_loss_of_a_client():
    """With full batches, the loss of a client is that of its batch."""
    options = {"batch_size": 32, "base": 3.0, "rounds": 2}
    assert difference(train("propfair", **options), train("propfair", **options, level="client")) < 1e-5
    apart = [train("propfair", **options, continuous=c, epsilon=2.9) for c in (True, False)]
    assert difference(*apart) > 1e-4


@pytest.mark.slow
def test_the_averaged_adversary_evaluates_the_mean_of_all_models():
    from tests.harness import compose, federation

    round = compose("afl", norm="none", options={"averaged": True})
    step, data, models = jax.jit(round.step), federation().data, []
    state = round.init(make_key(0), data)
    for _ in range(3):
        state, _ = step(state, data, make_key(0))
        models.append(state.server.shared)
    mean = jax.tree.map(lambda *leaves: sum(leaves) / 3, *models)
    assert float(tree.norm(tree.subtract(round.algorithm.evaluated(state.server), mean))) < 1e-5

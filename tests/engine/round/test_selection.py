"""Selection by what clients report: the rules, the poll, and the state that is kept between rounds."""

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy

from fedjax_het import tree
from fedjax_het._internal.keys import make_key
from fedjax_het.algorithms import dpsgd
from fedjax_het.engine import Checkpoints, Simulation, chunked, vmapped
from fedjax_het.engine.round import asynchronous, participation, timing
from fedjax_het.engine.round.participation import Told, know_nothing, remember
from fedjax_het.engine.round.participation._loss_covariance import covariance_of, log_likelihood
from fedjax_het.errors import InputError
from fedjax_het.uplink import gaussian_mechanism
from tests.harness import algorithm, compose, difference, federation, is_equal, model

SIZE, KEY = 12, make_key(0)
RULES = {
    "rpow_d": participation.rpow_d(4, 8),
    "active_fl": participation.active_fl(4, dropped=0.5, uniform=0.25),
    "oort": participation.oort(4),
}
KNOWN = know_nothing(np.full(SIZE, 10))._replace(
    value=jnp.full(SIZE, 0.7), last=jnp.full(SIZE, 3), count=jnp.full(SIZE, 1)
)


def state_of(name: str, known: participation.Known):
    state = RULES[name].init(np.asarray(known.num_examples), {}, make_key(0))
    return state._replace(known=known) if name == "oort" else known


def draw_many(name: str, known: participation.Known, num_draws: int = 3000) -> np.ndarray:
    """[draws, cohort]"""
    keys, state = jax.random.split(make_key(0), num_draws), state_of(name, known)
    return np.asarray(jax.jit(jax.vmap(lambda key: RULES[name].draw(key, SIZE, jnp.asarray(5), state)[0]))(keys))


@pytest.mark.parametrize("name", ["rpow_d", "oort"])
def test_equal_reports_give_the_uniform_draw(name):
    drawn = draw_many(name, KNOWN)
    assert all(len(set(cohort)) == 4 for cohort in drawn.tolist())
    shares = np.bincount(drawn.ravel(), minlength=SIZE) / len(drawn)
    np.testing.assert_allclose(shares, 4 / SIZE, atol=0.05)


def test_active_learning_with_equal_values_and_none_dropped_is_the_uniform_draw():
    rule = participation.active_fl(4, dropped=0.0, uniform=0.25)
    keys = jax.random.split(make_key(0), 3000)
    drawn = np.asarray(jax.jit(jax.vmap(lambda key: rule.draw(key, SIZE, jnp.asarray(5), KNOWN)[0]))(keys))
    np.testing.assert_allclose(np.bincount(drawn.ravel(), minlength=SIZE) / len(drawn), 4 / SIZE, atol=0.05)


@pytest.mark.extended
@pytest.mark.parametrize("name", RULES)
def test_clients_that_never_reported_come_first_and_those_without_examples_last(name):
    unknown = KNOWN._replace(count=KNOWN.count.at[jnp.array([2, 5, 7])].set(0), value=KNOWN.value.at[2].set(0))
    drawn = draw_many(name, unknown._replace(num_examples=unknown.num_examples.at[7].set(0)), 200)
    assert not np.any(drawn == 7)
    shares = np.bincount(drawn.ravel(), minlength=SIZE) / len(drawn)
    assert min(shares[2], shares[5]) > np.delete(shares, [2, 5]).max()


def test_permuted_clients_have_a_permuted_draw():
    losses, order = np.random.default_rng(0).random(SIZE).astype(np.float32), np.random.default_rng(1).permutation(SIZE)
    everyone = participation.rpow_d(4, SIZE)

    def draw(values):
        known = KNOWN._replace(value=jnp.asarray(values))
        return set(everyone.draw(make_key(0), SIZE, jnp.asarray(0), known)[0].tolist())

    assert {int(np.flatnonzero(order == client)[0]) for client in draw(losses)} == draw(losses[order])
    assert draw(losses) == set(np.argsort(-losses)[:4].tolist())


def test_fast_useful_and_long_unseen_clients_are_preferred_by_oort():
    known = KNOWN._replace(value=KNOWN.value.at[jnp.array([3, 6])].set(5.0), last=KNOWN.last.at[4].set(1))
    shares = np.bincount(draw_many("oort", known).ravel(), minlength=SIZE)
    assert shares[3] > shares[4] > shares[0]
    known = known._replace(seconds=jnp.ones(SIZE).at[3].set(50.0))
    slowed = np.bincount(draw_many("oort", known).ravel(), minlength=SIZE)
    assert slowed[3] < shares[3] / 2


def test_only_used_reports_are_remembered():
    told = Told(
        jnp.asarray(7), jnp.array([4, 1]), jnp.array([True, False]), jnp.array([2.5, 9.0]), jnp.array([3.0, 8.0])
    )
    after = remember(KNOWN, told)
    assert (float(after.value[4]), int(after.last[4]), int(after.count[4]), float(after.seconds[4])) == (2.5, 7, 2, 3.0)
    assert is_equal(*(tree.take(known, np.delete(np.arange(SIZE), 4)) for known in (KNOWN, after)))


# ---- FedCor ----------------------------------------------------------------------------------------------------------
@pytest.mark.extended
def test_the_likelihood_of_loss_changes_is_that_of_their_covariance():
    rng = np.random.default_rng(0)
    positions, changes, is_observed = rng.normal(size=(SIZE, 3)), rng.normal(size=SIZE), np.arange(SIZE) % 4 > 0
    with jax.enable_x64(True):
        matrix = np.asarray(covariance_of(jnp.asarray(positions)))[np.ix_(is_observed, is_observed)]
        ours = log_likelihood(jnp.asarray(positions), jnp.asarray(changes), jnp.asarray(is_observed))
        expected = scipy.stats.multivariate_normal(cov=matrix).logpdf(changes[is_observed])
        np.testing.assert_allclose(ours, expected, rtol=1e-9)


def poll_all(rule, known, number: int, losses, key=KEY):
    """Poll the clients of a round: (whether each client trains, the state)."""
    ids, is_here = rule.draw(key, SIZE, jnp.asarray(number), known)
    told = Told(jnp.asarray(number + 1), ids, is_here, jnp.where(is_here, jnp.asarray(losses)[ids], 0))
    is_chosen, known = rule.poll.choose(known, told)
    return jnp.zeros(SIZE, bool).at[ids].set(is_chosen), known


@pytest.mark.extended
def test_correlated_losses_are_learned_in_uniform_rounds_and_selected_once():
    """The losses of clients 0 to 3, and of 4 to 7, change together; those of others do not change."""
    rule = participation.fedcor(2, warm_up=6, interval=4, discount=0.5, first_steps=200, steps=5)
    known, rng, losses = rule.init(np.full(SIZE, 10), {}, KEY), np.random.default_rng(0), np.zeros(SIZE)
    start, polled, step = known.positions, [], jax.jit(partial(poll_all, rule))
    for number in range(11):
        polled.append(int(jnp.sum(rule.draw(KEY, SIZE, jnp.asarray(number), known)[1])))
        chosen, known = step(known, number, losses)
        assert int(chosen.sum()) == 2 and is_equal(known.positions, start) == (number < 6)
        if number in (6, 9):
            assert np.all(known.discount == 1)
            assert chosen[:4].sum() == chosen[4:8].sum() == 1
        ids = jnp.flatnonzero(chosen)
        known = rule.update(known, Told(jnp.asarray(number + 1), ids, jnp.ones(2, bool), None))
        assert np.all(known.discount[ids] <= 0.5)
        losses = losses + np.repeat(rng.normal(size=3) * [1, 1, 0], 4)
    assert polled == [12, 12, 12, 12, 12, 12, 12, 2, 12, 12, 2]
    assert is_equal(rule.init(np.full(SIZE, 10), {}, KEY).positions, start)


@pytest.mark.extended
def test_warm_up_cohorts_are_uniform_among_clients_with_examples():
    rule = participation.fedcor(4)
    known = rule.init(np.full(SIZE, 10) * (np.arange(SIZE) != 7), {}, KEY)
    cohorts = jax.vmap(lambda key: rule.draw(key, SIZE, jnp.asarray(3), known)[0])(jax.random.split(KEY, 3000))
    assert np.all(cohorts[:, -1] == 7)
    shares = np.bincount(np.ravel(cohorts[:, :4]), minlength=SIZE) / len(cohorts)
    np.testing.assert_allclose(np.delete(shares, 7), 4 / (SIZE - 1), atol=0.05)


# ---- in a run --------------------------------------------------------------------------------------------------------
def simulate(rule, name: str = "fedavg", rounds: int = 4, **options) -> Simulation:
    options = {"evaluate_every": rounds, "num_seeds": 2, **options}
    return Simulation(algorithm(name), model("none"), federation(), rounds=rounds, participation=rule, **options)


def finish(simulation: Simulation, *blocks: int):
    state, metrics = simulation.start(), []
    for block in blocks:
        state, measured = simulation.advance(state, block)
        metrics.append(measured)
    return state, jax.tree.map(lambda *parts: np.concatenate(parts, axis=1), *metrics)


SMALL = {
    "pow_d": participation.pow_d(2, 4),
    "rpow_d": participation.rpow_d(2, 4),
    "active_fl": participation.active_fl(2),
    "oort": participation.oort(2, pacer_step=1),
    "divfl": participation.divfl(2),
    "fedcor": participation.fedcor(2, warm_up=1, interval=3, first_steps=3, steps=2),
    "rpow_d, sometimes away": participation.bernoulli(0.6, among=participation.rpow_d(2, 5)),
}


@pytest.mark.slow
@pytest.mark.parametrize("rule", SMALL)
def test_a_run_is_equal_bit_for_bit_however_it_is_cut_and_wherever_its_data_are(rule):
    state, metrics = finish(simulate(SMALL[rule]), 4)
    counts = np.asarray(state.clients.rounds)
    assert counts.sum() == np.asarray(metrics.num_reporting).sum() and np.all(metrics.num_reporting <= 2)
    known = getattr(state.server.participation, "known", state.server.participation)
    if rule not in ("pow_d", "fedcor"):
        np.testing.assert_array_equal(known.count, counts)
    streamed = simulate(SMALL[rule], client_states="host", examples="stream")
    for other, blocks in ((simulate(SMALL[rule]), (1, 2, 1)), (streamed, (3, 1))):
        after, again = finish(other, *blocks)
        assert is_equal(after.server, state.server) and is_equal(again, metrics)


@pytest.mark.slow
@pytest.mark.parametrize("rule", ["rpow_d", "fedcor"])
def test_the_state_of_a_selection_is_in_checkpoints(tmp_path, rule):
    simulation = simulate(SMALL[rule])
    state, _ = simulation.advance(simulation.start(), 2)
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(2, state)
    restored = checkpoints.restore(jax.tree.map(jnp.copy, simulation.start()))
    expected, _ = simulation.advance(state, 2)
    assert is_equal(simulation.advance(restored, 2)[0], expected)


@pytest.mark.slow
@pytest.mark.parametrize("rule", ["pow_d", "rpow_d"])
def test_layouts_select_the_same_clients(rule):
    runs = [finish(simulate(SMALL[rule], layout=layout), 4) for layout in (vmapped, chunked(1), chunked(2))]
    for state, metrics in runs[1:]:
        np.testing.assert_array_equal(metrics.cohort, runs[0][1].cohort)
        assert difference(state.server.shared, runs[0][0].server.shared) < 1e-5


@pytest.mark.slow
def test_the_candidates_with_the_largest_losses_train():
    rule = participation.pow_d(2, 4)
    round = compose("fedavg", norm="none", participation=rule)
    data, key = federation().data, make_key(1)
    state = round.init(key, data)
    after, metrics, _ = jax.jit(round.step_with_messages)(state, data, key)
    everyone = compose("fedavg", norm="none", change={"reports": {"loss": rule.poll.measure}})
    rows = data.train
    _, _, told = jax.jit(everyone.step_with_messages)(everyone.init(key, data), data, key)
    assert metrics.cohort.shape == (4,) and int(metrics.num_reporting) == 2 and int(after.counters.polled) == 4
    losses = np.asarray(told.uploads.reports["loss"])[metrics.cohort]
    trained = set(np.flatnonzero(after.clients.rounds).tolist())
    assert trained == set(metrics.cohort[np.argsort(-losses)[:2]].tolist()) and len(rows.count) == 5


@pytest.mark.slow
def test_polls_count_as_traffic():
    simulation = simulate(SMALL["pow_d"])
    state, _ = finish(simulation, 4)
    assert np.all(np.asarray(state.counters.polled) == 16) and np.all(np.asarray(state.counters.reports) == 8)
    plain = simulate(participation.uniform(2))
    assert (simulation.cost.bytes_polled, plain.cost.bytes_polled) == (4, 0)
    assert simulation.cost.bytes_up == plain.cost.bytes_up
    assert simulate(SMALL["rpow_d"]).cost.bytes_up == plain.cost.bytes_up + 4
    state, metrics = finish(simulate(SMALL["fedcor"]), 4)  # all 5 clients answer, except in round 2
    assert np.all(np.asarray(state.counters.polled) == 17) and np.all(metrics.num_reporting == 2)
    known = state.server.participation
    np.testing.assert_array_equal(known.is_observed.sum(axis=(1, 2)), 5)
    assert np.all(known.discount.min(axis=1) < 1)
    assert plain.start().counters.polled is None and plain.start().server.participation == ()


# ---- refusals --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("rule", ["pow_d", "rpow_d"])
def test_a_selection_by_reports_is_refused_where_nothing_covers_it(rule):
    private = replace(algorithm("fedavg", weighting="uniform"), uplink=(gaussian_mechanism(1.0, 1.0),))
    for chosen, options, message in (
        (private, {}, "no guarantee"),
        (dpsgd(), {}, "needs a server"),
        (algorithm("fedavg"), {"timing": timing.log_normal(), "asynchronous": asynchronous.fedbuff(4, 2)}, "asynchron"),
    ):
        with pytest.raises(InputError, match=message):
            Simulation(chosen, model("none"), federation(), rounds=2, participation=SMALL[rule], **options)


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        (participation.rpow_d(0, 3), "cohort_size must be 1 to 5"),
        (participation.rpow_d(4, 3), "candidates must be 4, the cohort size, to 5"),
        (participation.pow_d(2, 6), "candidates must be 2, the cohort size, to 5"),
        (participation.oort(6), "cohort_size must be 1 to 5"),
        (participation.fedcor(6), "cohort_size must be 1 to 5"),
        (participation.bernoulli(0.6, among=participation.fedcor(2, warm_up=4)), "the run has 4. Lower warm_up"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(rule, message):
    with pytest.raises(InputError, match=message):
        simulate(rule)


def test_an_interval_without_selected_rounds_is_refused():
    with pytest.raises(InputError, match="interval"):
        participation.fedcor(2, interval=1)

"""Asynchronous rounds: their schedule, and the server's use of updates from older models."""

import functools
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_het import tree
from fedjax_het._internal.keys import make_key
from fedjax_het.engine import Simulation
from fedjax_het.engine.parallel.layout import chunked, sharded
from fedjax_het.engine.round import participation
from fedjax_het.engine.round.asynchronous import Asynchronous, fedasync, fedbuff
from fedjax_het.engine.round.event_schedule import make_schedule
from fedjax_het.engine.round.participation import derive_keys
from fedjax_het.engine.round.timing import log_normal
from fedjax_het.errors import InputError
from fedjax_het.uplink import gaussian_mechanism
from tests.harness import algorithm, difference, federation, is_equal, model, without_padding

CLIENTS = 7
RULES = [participation.uniform(1), participation.uniform(3), participation.full()]
RULES.append(participation.bernoulli(0.6, among=participation.uniform(2)))
SPEEDS = log_normal(step_seconds=1.0, message_seconds=0.5, sigma=0.8)


def simulation(rule=None, name="fedavg", cohort_size=1, rounds=4, num_clients=5, **options) -> Simulation:
    arguments = {"rounds": rounds, "timing": SPEEDS, "asynchronous": rule, "evaluate_every": rounds} | options
    cohort = {} if "participation" in options else {"cohort_size": cohort_size}
    return Simulation(algorithm(name), model("none"), federation(num_clients), **cohort, **arguments)


def finish(simulation: Simulation):
    return simulation.advance(simulation.start(), simulation.rounds)


# ---- the schedule ----------------------------------------------------------------------------------------------------
@functools.cache
def table_of_draws(rule: int, seed: int) -> list[list[tuple[int, bool]]]:
    def draw(number):
        return RULES[rule].draw(derive_keys(make_key(seed), number)[0], CLIENTS, number)

    ids, answers = jax.jit(jax.vmap(draw))(jnp.arange(2000))
    return [list(zip(*draws, strict=True)) for draws in zip(ids.tolist(), answers.tolist(), strict=True)]


def play(rule, draws, durations, rounds):
    """The events of a server and its clients, one instant after the other: {step: [(client, start, draw), ...]}."""
    clock, number, waiting, running, steps = 0.0, 0, [], {}, []
    while len(steps) < rounds:
        idle = {client for client in range(CLIENTS) if durations[client] < np.inf} - {entry[2] for entry in waiting}
        while rule.concurrency - len(running) >= len(draws[0]) and idle - {*running}:
            for place, (client, answers) in enumerate(draws[number]):
                if answers and client in idle - {*running}:
                    running[client] = (clock + durations[client], number, place, len(steps))
            number += 1
        clock = min(end for end, *_ in running.values())
        done = sorted((draw, place, client) for client, (end, draw, place, _) in running.items() if end == clock)
        for draw, place, client in done:
            start = running.pop(client)[-1]
            if rule.max_staleness is None or len(steps) - start <= rule.max_staleness:
                waiting.append((draw, place, client, start))
            if len(waiting) == rule.buffer_size:
                steps.append(([(client, start, draw) for draw, _, client, start in sorted(waiting)], clock))
                waiting = []
    return steps[:rounds]


@pytest.mark.slow
def test_the_schedule_is_that_of_an_event_queue():
    rng, num_stale, num_equal = np.random.default_rng(0), 0, 0
    for case in range(1000):
        index, seed = rng.integers(len(RULES)), int(rng.integers(5))
        smallest = RULES[index].size(CLIENTS)
        concurrency = int(rng.integers(smallest, CLIENTS + 1))
        buffer, oldest = int(rng.integers(1, concurrency + 1)), rng.choice([None, 0, 1, 3])
        rule = Asynchronous(concurrency, buffer, lambda age: age, max_staleness=oldest)
        durations = rng.integers(1, 4, CLIENTS).astype(float) if case % 2 else rng.lognormal(0, 1, CLIENTS)
        if concurrency < CLIENTS:
            durations[rng.integers(CLIENTS)] = np.inf  # a client without examples
        if oldest is not None and index == 2:
            continue  # all clients start together, and may always be too late together
        expected = play(rule, table_of_draws(int(index), seed), durations, rounds=6)
        found = make_schedule(rule, RULES[index], make_key(seed), CLIENTS, durations, 6)
        events = np.stack([found.clients, found.start, found.draw], axis=-1)
        np.testing.assert_array_equal(events, [event for event, _ in expected], err_msg=str(case))
        np.testing.assert_allclose(np.cumsum(found.seconds), [clock for _, clock in expected], rtol=1e-5)
        assert all(len(set(ids)) == buffer for ids in found.clients.tolist())
        num_stale += np.any(np.arange(6)[:, None] > found.start)
        num_equal += 1
    assert num_equal > 800 and num_stale > 300


def test_fewer_rounds_have_the_beginning_of_the_same_schedule():
    rule, durations = fedbuff(5, buffer_size=2), np.random.default_rng(1).lognormal(0, 1, CLIENTS)
    short, long = (make_schedule(rule, RULES[0], make_key(0), CLIENTS, durations, n) for n in (5, 40))
    for first, second in zip(short, long, strict=True):
        np.testing.assert_array_equal(first, second[:5])


# ---- laws ------------------------------------------------------------------------------------------------------------
@pytest.mark.slow
@pytest.mark.parametrize("name", ["fedavg", pytest.param("scaffold", marks=pytest.mark.slow)])
def test_with_one_number_as_buffer_cohort_and_concurrency_the_run_is_synchronous(name):
    """Bitwise, except for the last bit of the clock, for any speeds of clients."""
    expected, measured = finish(simulation(None, name, cohort_size=3))
    for rule in (fedbuff(3, buffer_size=3), fedbuff(3, buffer_size=3, exponent=2.0, max_staleness=0)):
        state, metrics = finish(simulation(rule, name, cohort_size=3))
        assert not metrics.staleness.any()
        assert is_equal(state.server.shared, expected.server.shared)
        assert is_equal(state.clients, expected.clients)
        np.testing.assert_allclose(state.counters.seconds, expected.counters.seconds, rtol=1e-6)
        assert is_equal(metrics._replace(staleness=None, seconds=None), measured._replace(seconds=None))


@pytest.mark.slow
def test_updates_are_scaled_by_their_staleness_and_models_are_mixed():
    """FedAsync's step is (1 - alpha s) w + alpha s w_i for the model w_i of the client, found by FedBuff."""
    plain, scaled = (simulation(fedbuff(3, buffer_size=1, exponent=a), rounds=8) for a in (0.0, 0.5))
    mixed = simulation(fedasync(3, mixing=0.6), rounds=8)
    schedule = plain.executor.traced.spec.schedule
    ages = (np.arange(8)[:, None] - schedule.start[0]).squeeze(-1)
    number = int(np.argmax(ages))
    assert ages[number] >= 2
    before, _ = plain.advance(plain.start(), number)
    before = jax.tree.map(lambda x: x[0], before)
    events = jax.tree.map(lambda x: x[0], schedule)

    def step(simulation):
        round = simulation.executor.traced.round
        after, metrics = jax.jit(round.step)(before, federation().data, make_key(0), events)
        assert metrics.staleness.tolist() == [ages[number]] and metrics.num_reporting == 1
        return after.server.shared

    now, update = before.server.shared, tree.subtract(step(plain), before.server.shared)
    start = tree.take(
        before.server.history.shared, int(schedule.start[0, number, 0]) % len(before.server.history.round)
    )
    factor = (1 + ages[number]) ** -0.5
    assert difference(tree.add(now, tree.scale(factor, update)), step(scaled)) < 1e-6
    model_of_client = tree.add(start, update)
    assert difference(start, now) > 1e-3
    expected = tree.add(tree.scale(1 - 0.6 * factor, now), tree.scale(0.6 * factor, model_of_client))
    assert difference(expected, step(mixed)) < 1e-6


def test_weights_of_staleness():
    ages = jnp.array([0, 1, 4, 5, 8])
    np.testing.assert_allclose(fedbuff(2, 2).weight(ages), (1 + ages) ** -0.5, rtol=1e-6)
    np.testing.assert_allclose(fedasync(2, 0.5, "constant").weight(ages), 0.5)
    np.testing.assert_allclose(fedasync(2, 0.5, a=2.0).weight(ages), 0.5 * (1.0 + ages) ** -2, rtol=1e-6)
    hinge = [1, 1, 1, 1 / 11, 1 / 41]
    np.testing.assert_allclose(fedasync(2, 1.0, "hinge").weight(ages), hinge, rtol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fedavg", "scaffold", "fedld"])
def test_layouts_give_equal_results(name):
    rule = fedbuff(4, buffer_size=2)
    expected, _ = finish(simulation(rule, name, num_seeds=2))
    assert np.any(expected.counters.seconds)
    for layout in (chunked(1), sharded(2)):
        state, _ = finish(simulation(rule, name, num_seeds=2, layout=layout))
        assert difference(without_padding(expected), without_padding(state)) < 1e-5


@pytest.mark.slow
def test_streamed_runs_give_the_same_bits():
    rule = fedbuff(4, buffer_size=2)
    expected, _ = finish(simulation(rule, "scaffold", num_seeds=2))
    stored, _ = finish(simulation(rule, "scaffold", num_seeds=2, client_states="host", examples="stream"))
    assert is_equal(stored.server, expected.server)
    assert is_equal(stored.clients.take(np.tile(np.arange(5), (2, 1))), expected.clients)


@pytest.mark.extended
def test_updates_that_are_too_old_are_dropped_and_counted():
    rule = fedbuff(4, buffer_size=1, max_staleness=1)
    state, metrics = finish(simulation(rule, rounds=8))
    assert metrics.staleness.max() <= 1 and metrics.num_late.sum() > 0
    assert jax.tree.leaves(state.server.history)[0].shape[1] == 2


# ---- what is refused -------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "rule, options, message",
    [
        (fedbuff(4, 2), {"timing": None}, "Set a timing"),
        (fedbuff(4, 2), {"timing": log_normal(deadline=3.0)}, "a deadline has no effect"),
        (fedbuff(4, 5), {}, "cannot wait for more updates"),
        (fedbuff(9, 5), {}, "5 clients have training examples"),
        (fedbuff(2, 2), {"cohort_size": 3}, "cohort_size"),
        (fedbuff(4, 2), {"participation": participation.poisson(0.5)}, "there are no rounds"),
        (fedbuff(4, 2), {"name": "fedpac"}, "surveys its clients"),
        (fedbuff(4, 2), {"participation": participation.bernoulli(1e-9)}, "concurrency"),
    ],
)
def test_what_cannot_work_is_refused(rule, options, message):
    with pytest.raises(InputError, match=message):
        simulation(rule, **options)


@pytest.mark.extended
@pytest.mark.parametrize("noise_at", ["server", "clients"])
def test_noise_at_the_server_is_refused_and_noise_at_clients_is_not(noise_at):
    private = replace(
        algorithm("fedavg", weighting="uniform"), uplink=(gaussian_mechanism(1.0, 1.0, noise_at=noise_at),)
    )
    arguments = {"rounds": 1, "timing": SPEEDS, "asynchronous": fedbuff(4, 2), "cohort_size": 1}
    if noise_at == "server":
        with pytest.raises(InputError, match=r"noise at the server has no known guarantee.*noise_at='clients'"):
            Simulation(private, model("none"), federation(), **arguments)
    else:
        assert Simulation(private, model("none"), federation(), **arguments).rounds == 1


def test_a_participation_that_nobody_answers_is_refused(monkeypatch):
    monkeypatch.setattr("fedjax_het.engine.round.event_schedule._MAX_EMPTY_DRAWS", 100)
    with pytest.raises(InputError, match="Raise availability"):
        simulation(fedbuff(5, 2), participation=participation.bernoulli(1e-9))


@pytest.mark.parametrize("options", [{"staleness": "constant", "a": 1.0}, {"b": 3}])
def test_options_without_effect_are_refused(options):
    with pytest.raises(InputError, match="no effect"):
        fedasync(4, **options)

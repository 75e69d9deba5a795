"""Surveys of all clients before the first training."""

from dataclasses import replace

import numpy as np
import pytest

from fedjax_het import participation
from fedjax_het._internal.keys import make_key
from fedjax_het.engine.parallel.layout import chunked
from fedjax_het.engine.simulation import Simulation
from fedjax_het.errors import InputError
from tests.harness import algorithm, compose, difference, federation, is_equal, model, run

OPTIONS = {"survey_first": True}


def simulate(rule=participation.uniform(2), rounds: int = 5, **options):
    chosen = algorithm("feddbe", **OPTIONS)
    return Simulation(chosen, model("none"), federation(), rounds=rounds, participation=rule, **options)


@pytest.mark.extended
def test_all_clients_answer_once_and_train_later():
    count = np.asarray(federation().data.train.count)
    opened = compose("feddbe", norm="none", participation=participation.uniform(2), options=OPTIONS)
    begin = opened.init(make_key(0), federation().data)
    states = [run(opened, rounds=rounds)[0] for rounds in (2, 3, 5)]  # five clients, of whom the third cohort has one
    assert [state.server.published["consensus"]["weight"] for state in states] == [sum(count[:4]), *2 * [sum(count)]]
    everybody = compose("feddbe", norm="none")
    expected = run(everybody, rounds=1)[0].server.published
    assert difference(states[1].server.published, expected) < 1e-4
    assert is_equal(states[1].server.shared, begin.server.shared) and is_equal(states[1].clients, begin.clients)
    assert is_equal(states[2].server.published, states[1].server.published)
    assert states[2].clients.rounds.sum() == states[2].counters.reports == 4
    assert difference(states[2].server.shared, begin.server.shared) > 1e-4


@pytest.mark.slow
def test_opening_rounds_do_not_depend_on_layout_and_place_and_count_as_traffic():
    simulation = simulate()
    state, metrics = simulation.advance(simulation.start(), 5)
    assert metrics.num_reporting.tolist() == [[0, 0, 0, 2, 2]]
    rule = participation.uniform(2)
    plain = Simulation(algorithm("feddbe"), model("none"), federation(), rounds=5, participation=rule)
    assert simulation.cost.bytes_opening == plain.cost.bytes_up - simulation.cost.bytes_up > 0
    streamed = simulate(client_states="host", examples="stream")
    middle, _ = streamed.advance(streamed.start(), 2)
    assert is_equal(streamed.advance(middle, 3)[0].server, state.server)
    chunks = simulate(layout=chunked(1))
    assert difference(chunks.advance(chunks.start(), 5)[0].server.shared, state.server.shared) < 1e-5


def test_a_survey_that_cannot_come_first_is_refused():
    for rule, rounds, message in (
        (participation.pow_d(2, 4), 5, "Choose a rule without a poll"),
        (participation.uniform(2), 3, "surveyed in the first 3 rounds, and the run has 3"),
    ):
        with pytest.raises(InputError, match=message):
            simulate(rule, rounds)
    nobody_asks = replace(algorithm("fedavg"), survey_first=True)
    with pytest.raises(InputError, match="has no survey"):
        Simulation(nobody_asks, model("none"), federation(), rounds=2)

"""Traffic between devices in a round, read from the compiled program; the documentation extrapolates from it."""

from collections import Counter

import pytest

from experiments.benchmarks.collectives import list_collectives
from fedjax_het import models, tree
from fedjax_het._internal.target_platform import tracing_for
from fedjax_het.engine import Simulation, sharded
from fedjax_het.engine.execution.evaluator import Evaluator
from fedjax_het.engine.execution.programs import RunPrograms
from tests.harness import algorithm, federation

pytestmark = pytest.mark.extended

COHORT, DEVICES = 8, 4


def simulate(name: str, num_clients: int) -> Simulation:
    return Simulation(
        algorithm(name),
        models.mlp(3, hidden=(300,)),
        federation(num_clients),
        rounds=2,
        cohort_size=None if num_clients == COHORT else COHORT,
        evaluate_every=2,
        layout=sharded(DEVICES),
    )


def traffic(text: str, num_bytes: int) -> Counter:
    """Bytes of the results of a program's collectives by kind, in units of `num_bytes`; none is in an inner loop."""
    found = Counter()
    for kind, size in list_collectives(text):
        found[kind] += size / num_bytes
    return found


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "num_clients", "gathered", "traded", "reduced"),
    [
        ("fedavg", 16, 0, 0, 1),
        ("fedld", 16, 0, COHORT / DEVICES, 1),  # each device gets its part of the columns, for the Gram matrix
        # Control variates to the devices of their slots, and back to all; the sums of updates and of changes.
        ("scaffold", 16, COHORT, COHORT, 2),
        ("scaffold", COHORT, 0, 0, 2),  # full participation: each device has its rows
    ],
)
def test_traffic_between_devices_is_the_documented_number_of_models(name, num_clients, gathered, traded, reduced):
    executor = simulate(name, num_clients).executor
    text = "\n".join(program.as_text() for program in (executor.program, *executor.exchange))
    found = traffic(text, tree.num_bytes(executor.traced.shapes.state.server.shared))
    assert found["all-gather"] == pytest.approx(gathered, abs=0.1)
    assert found["all-to-all"] == pytest.approx(traded, abs=0.1)
    assert found["all-reduce"] == pytest.approx(reduced, abs=0.1)
    assert found["reduce-scatter"] == 0


@pytest.mark.slow
def test_rows_that_a_tpu_takes_one_by_one_are_taken_where_they_lie(monkeypatch):
    monkeypatch.setattr(tree, "_LARGE_ROW", 1)
    with tracing_for("tpu"):
        executor = simulate("scaffold", 16).executor
        text = "\n".join(program.as_text() for program in executor.exchange)
    found = traffic(text, tree.num_bytes(executor.traced.shapes.state.server.shared))
    assert found["all-to-all"] == pytest.approx(COHORT, abs=0.1)
    assert found["all-gather"] == pytest.approx(COHORT, abs=0.1)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "gathered"), [("ditto", 0), ("lgfedavg", COHORT)])
def test_an_evaluation_sends_models_of_clients_once_or_twice(name, gathered):
    """A block of clients at a time: for scoring, and for the mean of personal leaves on every device."""
    traced = simulate(name, 16).executor.traced
    programs, state = Evaluator(RunPrograms(traced)).programs(), traced.shapes.state
    personal = tree.num_bytes(state.clients.personal) / 16
    text = "\n".join(program.begin_compilation().result().as_text() for program, _ in programs.values())
    found = traffic(text, tree.num_bytes(state.server.shared) + personal)
    assert found["all-gather"] == pytest.approx(gathered, rel=0.1, abs=0.1)
    assert found["all-to-all"] == pytest.approx(COHORT + gathered, rel=0.1)
    assert found["all-reduce"] < 0.1

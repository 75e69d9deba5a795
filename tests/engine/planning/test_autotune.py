import jax
import numpy as np
import pytest

from fedjax_het import models
from fedjax_het._internal.target_platform import tracing_for
from fedjax_het.engine import Simulation
from fedjax_het.engine.parallel.layout import chunked, sharded, vmapped
from fedjax_het.engine.planning import autotune
from fedjax_het.engine.planning.autotune import Candidate
from fedjax_het.errors import InputError, MemoryBudgetError
from tests.harness import algorithm, federation, model


@pytest.mark.parametrize(
    ("cohort", "expected"),
    [
        (1, ["chunked(1)", "vmapped"]),
        (3, ["sharded(3, 1)", "sharded(3)", "vmapped"]),
        (100, ["sharded(4, 1)", "sharded(4)", "sharded(4, 10)", "vmapped"]),
    ],
)
def test_candidates_on_four_cpu_cores_depend_on_the_cohort_size(cohort, expected):
    assert [str(layout) for layout in autotune.candidates(cohort)] == expected


def test_candidates_on_accelerators_are_large_chunks(monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert [str(layout) for layout in autotune.candidates(100)] == ["sharded(4)", "sharded(4, 10)"]
    monkeypatch.setattr(jax, "device_count", lambda: 1)
    assert [str(layout) for layout in autotune.candidates(100)] == ["vmapped", "chunked(10)"]
    with_convs = autotune.candidates(100, CONVS)
    assert [str(layout) for layout in with_convs] == ["vmapped", "chunked(10)", "chunked(1)"]


class Built:
    """The timing of a candidate, as the choice reads it."""

    def __init__(self, candidate):
        self.candidate, self.compile_seconds, self.is_released = candidate, 10.0, False

    def release(self):
        self.is_released = True


def choose(monkeypatch, seconds: dict, rounds: int, too_large: tuple = ()) -> tuple[Built, autotune.LayoutChoice]:
    """The choice for these timings; a compilation takes ten seconds."""

    def build(candidate):
        if candidate.layout in too_large:
            raise MemoryBudgetError(str(candidate))
        return Built(candidate)

    monkeypatch.setattr(autotune, "time_rounds", lambda runner, *_: [seconds[runner.candidate], 99.0])
    return autotune.find_fastest(list(seconds), build, rounds)


SECONDS = {Candidate(vmapped): 0.3, Candidate(chunked(1)): 0.1, Candidate(sharded(2)): 0.2}
CONVS = ("lax", "im2col")
# The skipped candidates of the six would be the fastest.
PAIRS = autotune.pair_up([vmapped, chunked(10), chunked(1)], CONVS)
PAIR_SECONDS = dict(zip(PAIRS, [9, 4, 1, 3, 6, 1], strict=True))


def test_the_fastest_layout_is_chosen_and_the_reason_names_the_others(monkeypatch):
    runner, choice = choose(monkeypatch, SECONDS, rounds=1000)
    assert runner.candidate == (choice.layout, choice.conv) == (chunked(1), None) and runner.is_released
    assert choice.reason == "chunked(1): 0.1 s per round, against vmapped 0.3, sharded(2) 0.2"


def test_a_run_shorter_than_a_compilation_is_not_tuned_further(monkeypatch):
    _, choice = choose(monkeypatch, SECONDS, rounds=20)
    assert choice.layout == vmapped
    assert choice.reason.splitlines()[1].startswith("chunked(1), sharded(2) not tried")


def test_layouts_that_do_not_fit_in_memory_are_left_out(monkeypatch):
    runner, choice = choose(monkeypatch, SECONDS, rounds=1000, too_large=(chunked(1),))
    assert runner.candidate.layout == choice.layout == sharded(2)
    assert choice.reason.splitlines()[1] == "chunked(1) not tried: too large for the memory"
    with pytest.raises(MemoryBudgetError, match="sharded"):
        choose(monkeypatch, SECONDS, rounds=1000, too_large=(vmapped, chunked(1), sharded(2)))


def test_convolutions_are_timed_in_one_layout_and_the_fastest_in_the_others(monkeypatch):
    """XLA's own convolution for sequential clients, where it is not grouped."""
    _, choice = choose(monkeypatch, PAIR_SECONDS, rounds=1000)
    tried = ["vmapped with lax", "vmapped with im2col", "chunked(10) with im2col"]
    assert [str(timing.candidate) for timing in choice.timings] == [*tried, "chunked(1) with lax"]
    assert (choice.layout, choice.conv) == (chunked(10), "im2col")
    assert choice.reason.startswith("chunked(10) with im2col: 3 s per round, against vmapped with lax 9, ")
    _, choice = choose(monkeypatch, PAIR_SECONDS, rounds=1000, too_large=(vmapped,))
    assert [str(timing.candidate) for timing in choice.timings][:2] == [f"chunked(10) with {conv}" for conv in CONVS]


def test_a_short_run_names_the_convolutions_that_were_not_tried(monkeypatch):
    _, choice = choose(monkeypatch, PAIR_SECONDS, rounds=1)
    assert (choice.layout, choice.conv) == (vmapped, "lax")
    assert choice.reason.splitlines()[1].startswith("vmapped with im2col, chunked(10) with lax, ")


def test_smaller_layouts_train_fewer_clients_at_a_time():
    assert [str(x) for x in autotune.smaller_layouts([vmapped, chunked(10)], 100)] == [
        "chunked(5)",
        "chunked(2)",
        "chunked(1)",
    ]
    assert [str(x) for x in autotune.smaller_layouts([sharded(2)], 9)] == ["sharded(2, 2)", "sharded(2, 1)"]
    assert list(autotune.smaller_layouts([sharded(2), chunked(1)], 9)) == []


@pytest.mark.extended
def test_a_simulation_with_layout_auto_records_its_choice():
    simulation = Simulation(algorithm("fedavg"), model(), federation(), rounds=2, layout="auto")
    assert simulation.choice.layout is simulation.layout
    assert simulation.choice.timings[0].seconds > 0
    state, _ = simulation.advance(simulation.start(), 2)
    assert int(state.server.round[0]) == 2


@pytest.mark.slow
def test_off_the_cpu_auto_times_convolutions_with_layouts_and_trains_the_same(monkeypatch):
    """As on an accelerator, computed on CPUs; im2col is made the fastest."""
    order = iter([3.0, 2.0, 4.0, 5.0])
    monkeypatch.setattr(autotune, "time_rounds", lambda *_: [next(order)])
    monkeypatch.setattr(jax, "device_count", lambda: 1)
    network = models.cnn(3, channels=(2,), hidden=(), kernel=3)
    given = {"cohort_size": 4, "rounds": 1000, "evaluate_every": 2}
    with tracing_for("gpu"):
        chosen = Simulation(algorithm("fedld"), network, federation(12), layout="auto", **given)
    layouts = [str(timing.candidate) for timing in chosen.choice.timings]
    assert layouts == [*(f"vmapped with {conv}" for conv in CONVS), "chunked(1) with lax"]
    assert chosen.choice.conv == "im2col" and " convolution(" not in chosen.executor.program.as_text()
    plain = Simulation(algorithm("fedld"), network, federation(12), layout=vmapped, **given)
    states = [simulation.advance(simulation.start(), 2)[0].server.shared for simulation in (chosen, plain)]
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), *states)


@pytest.mark.extended
def test_the_chosen_layout_is_compiled_once(monkeypatch):
    compiled, compile = [], jax.stages.Lowered.compile
    monkeypatch.setattr(jax.stages.Lowered, "compile", lambda self: compiled.append(1) or compile(self))
    simulation = Simulation(algorithm("fedavg"), model(), federation(), rounds=2, layout="auto")
    # The round, the cohorts and the initialization of each, and the evaluation.
    assert len(compiled) == 3 * len(simulation.choice.timings) + 1


def test_an_unknown_layout_name_is_refused():
    with pytest.raises(InputError, match="expected a Layout or 'auto', got 'fast'"):
        Simulation(algorithm("fedavg"), model(), federation(), rounds=2, layout="fast")

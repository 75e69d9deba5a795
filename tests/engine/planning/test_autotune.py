import jax
import pytest

from fedjax_het.engine import Simulation
from fedjax_het.engine.parallel.layout import chunked, sharded, vmapped
from fedjax_het.engine.planning import autotune
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


class Built:
    """What a layout came to, as far as a choice looks."""

    def __init__(self, layout):
        self.layout, self.compile_seconds, self.is_released = layout, 10.0, False

    def release(self):
        self.is_released = True


def choose(monkeypatch, seconds: dict, rounds: int, too_large: tuple = ()) -> tuple[Built, autotune.LayoutChoice]:
    """What is made of such timings; a compilation takes ten seconds."""

    def build(layout):
        if layout in too_large:
            raise MemoryBudgetError(str(layout))
        return Built(layout)

    monkeypatch.setattr(autotune, "time_rounds", lambda runner, *_: [seconds[runner.layout], 99.0])
    return autotune.find_fastest(list(seconds), build, rounds)


SECONDS = {vmapped: 0.3, chunked(1): 0.1, sharded(2): 0.2}


def test_the_fastest_layout_is_chosen_and_the_reason_names_the_others(monkeypatch):
    runner, choice = choose(monkeypatch, SECONDS, rounds=1000)
    assert runner.layout == choice.layout == chunked(1) and runner.is_released
    assert choice.reason == "chunked(1): 0.1 s per round, against vmapped 0.3, sharded(2) 0.2"


def test_a_run_shorter_than_a_compilation_is_not_tuned_further(monkeypatch):
    _, choice = choose(monkeypatch, SECONDS, rounds=20)
    assert choice.layout == vmapped
    assert choice.reason.splitlines()[1].startswith("chunked(1), sharded(2) not tried")


def test_layouts_that_do_not_fit_in_memory_are_left_out(monkeypatch):
    runner, choice = choose(monkeypatch, SECONDS, rounds=1000, too_large=(chunked(1),))
    assert runner.layout == choice.layout == sharded(2)
    assert choice.reason.splitlines()[1] == "chunked(1) not tried: too large for the memory"
    with pytest.raises(MemoryBudgetError, match="sharded"):
        choose(monkeypatch, SECONDS, rounds=1000, too_large=tuple(SECONDS))


def test_smaller_layouts_train_fewer_clients_at_a_time():
    assert [str(x) for x in autotune.smaller_layouts([vmapped, chunked(10)], 100)] == [
        "chunked(5)",
        "chunked(2)",
        "chunked(1)",
    ]
    assert [str(x) for x in autotune.smaller_layouts([sharded(2)], 9)] == ["sharded(2, 2)", "sharded(2, 1)"]
    assert list(autotune.smaller_layouts([sharded(2), chunked(1)], 9)) == []


def test_a_simulation_with_layout_auto_records_its_choice():
    simulation = Simulation(algorithm("fedavg"), model(), federation(), rounds=2, layout="auto")
    assert simulation.choice.layout is simulation.layout
    assert simulation.choice.timings[0].seconds > 0
    state, _ = simulation.advance(simulation.start(), 2)
    assert int(state.server.round[0]) == 2


def test_the_chosen_layout_is_compiled_once(monkeypatch):
    compiled, compile = [], jax.stages.Lowered.compile
    monkeypatch.setattr(jax.stages.Lowered, "compile", lambda self: compiled.append(1) or compile(self))
    simulation = Simulation(algorithm("fedavg"), model(), federation(), rounds=2, layout="auto")
    assert len(compiled) == len(simulation.choice.timings) + 1  # and the evaluation


def test_an_unknown_layout_name_is_refused():
    with pytest.raises(InputError, match="a Layout or 'auto', not 'fast'"):
        Simulation(algorithm("fedavg"), model(), federation(), rounds=2, layout="fast")

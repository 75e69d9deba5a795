import jax
import pytest

from fedjax_het.engine import Simulation, tuning
from fedjax_het.engine.layout import chunked, sharded, vmapped
from fedjax_het.errors import InputError
from tests.harness import algorithm, federation, model


@pytest.mark.parametrize(
    ("cohort", "expected"),
    [
        (1, ["chunked(1)", "vmapped"]),
        (3, ["sharded(3, 1)", "sharded(3)", "vmapped"]),
        (100, ["sharded(4, 1)", "sharded(4)", "sharded(4, 10)", "vmapped"]),
    ],
)
def test_candidates_on_a_cpu_of_four_cores(cohort, expected):
    assert [str(layout) for layout in tuning.candidates(cohort)] == expected


def test_candidates_on_accelerators(monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert [str(layout) for layout in tuning.candidates(100)] == ["sharded(4)", "sharded(4, 10)"]
    monkeypatch.setattr(jax, "device_count", lambda: 1)
    assert [str(layout) for layout in tuning.candidates(100)] == ["vmapped", "chunked(10)"]


def chosen(monkeypatch, seconds: dict, rounds: int) -> tuning.Choice:
    """What is made of such timings; a compilation takes ten seconds."""
    monkeypatch.setattr(tuning, "candidates", lambda cohort_size: list(seconds))
    timed = lambda *arguments: tuning.Timing(arguments[4], seconds[arguments[4]], 10.0)  # noqa: E731
    monkeypatch.setattr(tuning, "_timed", timed)
    everyone = type("", (), {"size": lambda self, num_clients: 5})()
    return tuning.quickest(None, None, federation(), everyone, rounds, seed=0)


def test_the_quickest_wins_and_the_reason_names_the_others(monkeypatch):
    choice = chosen(monkeypatch, {vmapped: 0.3, chunked(1): 0.1, sharded(2): 0.2}, rounds=1000)
    assert choice.layout == chunked(1)
    assert choice.reason == "chunked(1): 0.1 s a round, against vmapped 0.3, sharded(2) 0.2"


def test_a_run_that_is_over_before_another_compilation_is_not_tuned_further(monkeypatch):
    choice = chosen(monkeypatch, {vmapped: 0.3, chunked(1): 0.1, sharded(2): 0.2}, rounds=20)
    assert choice.layout == vmapped
    assert choice.reason.splitlines()[1].startswith("chunked(1), sharded(2) not tried")


def test_a_simulation_takes_auto_and_tells():
    simulation = Simulation(algorithm("fedavg"), model(), federation(), rounds=2, layout="auto")
    assert simulation.choice.layout is simulation.layout
    assert simulation.choice.timings[0].seconds > 0
    state, _ = simulation.advance(simulation.start(), 2)
    assert int(state.server.round[0]) == 2


def test_another_word_is_refused():
    with pytest.raises(InputError, match="a Layout or 'auto', not 'fast'"):
        Simulation(algorithm("fedavg"), model(), federation(), rounds=2, layout="fast")

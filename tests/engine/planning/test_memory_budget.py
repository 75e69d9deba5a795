"""The placement of client states and examples within a memory budget."""

import functools
import shutil

import jax
import numpy as np
import pytest

from fedjax_het.engine import Layout, OffloadPolicy, Simulation, Sweep, chunked, vmapped
from fedjax_het.engine.execution import cost
from fedjax_het.engine.execution.run_spec import ALL_ON_DEVICE, RunSpec
from fedjax_het.engine.execution.trace import TracedRound, trace_round
from fedjax_het.engine.planning import autotune, memory_budget
from fedjax_het.engine.round import participation
from fedjax_het.errors import InputError
from tests.harness import algorithm, federation, model

AUTO = OffloadPolicy("auto", "auto")
CLIENTS, COHORT = 60, 8
RESIDENCES = [("device", "device"), ("device", "stream"), ("host", "device"), ("host", "stream")]  # quickest first


class Built:
    """An executor with the attributes that budgets read: each training client takes 100 kB of temporary arrays."""

    def __init__(self, wired, residence, folder, is_tentative):
        self.traced, self.offload, self.compile_seconds = wired, residence, 0.0
        chunk = min(wired.layout.chunk or COHORT, COHORT)
        self.peak_bytes = self.round_bytes = (
            cost.bytes_before_round(cost.resident_bytes(wired, residence)) + chunk * 100_000
        )

    def release(self):
        pass


@functools.cache
def trace_cached(layout: Layout) -> TracedRound:
    return trace_round(
        RunSpec(
            Sweep(lambda: algorithm("scaffold")), model(), federation(CLIENTS), participation.uniform(COHORT), 100, 10
        ),
        layout,
    )


@pytest.fixture
def select(monkeypatch, tmp_path):
    """The placement of a run with sixty clients, eight per round."""
    monkeypatch.setattr(memory_budget, "trace_round", lambda _, layout: trace_cached(layout))
    monkeypatch.setattr(memory_budget, "Executor", Built)
    monkeypatch.setattr(autotune, "time_rounds", lambda runner, *_: [1.0])

    def select(layout, budget_kb, wishes=AUTO):
        size = None if budget_kb is None else 1000 * budget_kb
        runner, choice = memory_budget.build_executor(trace_cached(vmapped).spec, layout, wishes, size, tmp_path)
        return runner.offload, runner.traced.layout, choice

    select.held = lambda *residence: (
        sum(cost.resident_bytes(trace_cached(vmapped), OffloadPolicy(*residence)).values()) / 1000
    )
    return select


@pytest.mark.extended
def test_without_a_limit_everything_is_on_the_device(select):
    assert select(vmapped, None)[0] == ("device", "device")


@pytest.mark.parametrize("expected", RESIDENCES)
def test_arrays_that_do_not_fit_are_kept_off_the_device(select, expected):
    """A budget that this placement just fits, and no faster one."""
    sizes = {residence: select.held(*residence) for residence in RESIDENCES}
    assert sizes["host", "stream"] < min(sizes["host", "device"], sizes["device", "stream"]) < sizes["device", "device"]
    fitting = [residence for residence, size in sizes.items() if size <= sizes[expected]]
    assert select(vmapped, sizes[expected] + 800.5)[0] == fitting[0]


def test_a_requested_offload_is_kept_for_any_budget(select):
    assert select(vmapped, 10**6, OffloadPolicy("disk", "stream"))[0] == ("disk", "stream")
    with pytest.raises(InputError, match="memory_budget"):
        select(vmapped, select.held("device", "device") + 700, OffloadPolicy("device", "device"))


@pytest.mark.extended
def test_layout_auto_trains_fewer_clients_at_a_time_within_the_budget(select, monkeypatch):
    monkeypatch.setattr(autotune, "candidates", lambda *_: [vmapped, chunked(5)])
    _, layout, choice = select("auto", select.held("device", "device") + 210, OffloadPolicy("device", "device"))
    assert layout == chunked(2) and choice.layout == layout


def test_a_requested_layout_is_not_changed(select):
    with pytest.raises(InputError, match="is too small"):
        select(vmapped, select.held("device", "device") + 210, OffloadPolicy("device", "device"))


def test_the_error_lists_the_memory_of_every_offload_policy(select):
    with pytest.raises(InputError) as error:
        select(vmapped, 300)
    lines = str(error.value).splitlines()
    assert lines[0] == "memory_budget: 0.3 MB per device is too small. In MB:"
    assert len(lines) == 6 and lines[-1].startswith("Use a smaller cohort_size, batch_size or model")
    assert "with client states: device, examples: device, vmapped: server's state 0.0, client states " in lines[1]
    assert "client states of 3 cohorts " in lines[4] and "examples of 2 cohorts " in lines[4]


@pytest.mark.extended
def test_a_budget_that_is_too_small_is_refused_before_compiling(monkeypatch, tmp_path):
    monkeypatch.setattr(memory_budget, "Executor", lambda *_, **options: pytest.fail("compiled"))
    with pytest.raises(InputError, match="memory_budget"):
        Simulation(algorithm("scaffold"), model(), federation(), rounds=2, memory_budget=2000)


def test_states_too_large_for_the_hosts_memory_are_kept_on_disk(select, monkeypatch):
    monkeypatch.setattr(memory_budget, "physical_memory", lambda: 10_000)
    assert select(vmapped, select.held("host", "stream") + 801)[0] == ("disk", "stream")
    with pytest.raises(InputError, match=r"client_states: 'host' may need .* Use 'disk'"):
        select(vmapped, None, OffloadPolicy("host", "device"))


@pytest.mark.parametrize("budget_kb", [None, 10**9])
def test_a_run_too_large_for_the_machine_is_refused_before_compiling(select, monkeypatch, budget_kb):
    monkeypatch.setattr(memory_budget, "Executor", None)
    monkeypatch.setattr(Layout, "device_memory", 1000)
    with pytest.raises(InputError, match=r"^memory: this run needs more than .*server's state .*a client in training"):
        select(vmapped, budget_kb)


@pytest.mark.extended
def test_a_program_too_large_for_the_machine_is_refused_before_running(select, monkeypatch):
    size = 1000 * select.held("device", "device") + 500_000
    monkeypatch.setattr(memory_budget, "device_capacity", lambda job, layout: size)
    with pytest.raises(InputError, match=r"^memory: this run needs more than .*temporary arrays 0\.8"):
        select(vmapped, None)
    assert select("auto", None)[1].chunk


def test_a_disk_that_is_too_small_is_refused(select, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda place: shutil._ntuple_diskusage(10**6, 10**6, 1000))
    with pytest.raises(InputError, match=r"client_states: 'disk' may need .* Choose another folder"):
        select(vmapped, None, OffloadPolicy("disk", "device"))


@pytest.mark.slow
def test_a_simulation_runs_within_a_small_memory_budget():
    """End to end: everything on the device would take four times the budget, and is not compiled."""
    simulation = Simulation(
        algorithm("scaffold"), model(), federation(400), rounds=2, cohort_size=3, memory_budget=200_000
    )
    assert (
        cost.bytes_before_round(cost.resident_bytes(simulation.executor.traced, ALL_ON_DEVICE))
        > 4 * 200_000
        > 4 * simulation.cost.peak_bytes
    )
    assert simulation.offload == ("host", "stream")
    state, metrics = simulation.advance(simulation.start(), 2)
    assert np.isfinite(metrics.loss).all() and np.isfinite(simulation.evaluate(state).test.loss).all()


def test_several_processes_keep_everything_on_their_devices(select, monkeypatch):
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    assert select(vmapped, None)[0] == ("device", "device")
    with pytest.raises(InputError, match=r"client_states: 'host' is for a single process.* Use auto or device"):
        select(vmapped, None, OffloadPolicy("host", "auto"))
    with pytest.raises(InputError, match=r"too small(?s:.*) Several processes keep everything on their devices"):
        select(vmapped, select.held("host", "stream") + 801)

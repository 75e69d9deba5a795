"""Equality of runs with client states and examples off the device and on it."""

import functools
import gc
from dataclasses import replace

import jax
import numpy as np
import pytest

from fedjax_het import data, models
from fedjax_het.algorithm import Stage
from fedjax_het.algorithms import ALGORITHMS
from fedjax_het.engine import ClientStore, Layout, Simulation, Sweep, chunked, sharded, vmapped
from fedjax_het.engine.round import participation
from fedjax_het.types import Model, State
from fedjax_het.uplink import quantize, top_k
from tests.compilation import HAS_EMITTERS_FLAG
from tests.harness import algorithm, is_equal, model, network_of, supply, without_padding

pytestmark = pytest.mark.extended

# Tests compile with little optimization, so programs may round the same operations differently.
# These tests use the user's default.
EARNEST = {"xla_backend_optimization_level": 3, "xla_llvm_disable_expensive_passes": False}
EARNEST |= {"xla_cpu_use_fusion_emitters": True} if HAS_EMITTERS_FLAG else {}
LAYOUTS = {"chunked(1)": lambda: chunked(1), "sharded(2, 1)": lambda: sharded(2, 1), "vmapped": lambda: vmapped}
ELSEWHERE = [
    ("chunked(1)", ("host", "device")),
    ("sharded(2, 1)", ("disk", "stream")),
    ("vmapped", ("device", "stream")),
]
SLOW = pytest.mark.slow


@pytest.fixture
def full_optimization(monkeypatch):
    jit = Layout.jit
    monkeypatch.setattr(
        Layout, "jit", lambda *arguments, **options: jit(*arguments, **options | {"compiler_options": EARNEST})
    )


def quick_options() -> dict:
    """A model that compiles quickly."""
    return {"network": models.mlp(3, hidden=()), "shuffle": False}


@functools.cache
def federation():
    return data.toy(
        num_clients=7, image=(6, 6, 1), examples_per_client=(7, 24), valid_fraction=0.2, unseen_clients=1, num_classes=3
    )


def build(
    chosen: str | Sweep,
    client_states: str = "device",
    examples: str = "device",
    network: Model | None = None,
    shuffle: bool = True,
    uplink: tuple[Stage, ...] = (),
    **options,
) -> Simulation:
    """Few clients, some absent: a client of one of the last two rounds often takes part again."""
    options = {"layout": chunked(1), "participation": participation.bernoulli(0.7, participation.uniform(3))} | options
    options |= {"rounds": 9, "evaluate_every": 5, "client_states": client_states, "examples": examples}
    options["personal_on_test"] = True
    if isinstance(chosen, str):
        network = network or network_of(chosen)
        chosen = replace(algorithm(chosen, shuffle=shuffle), uplink=uplink)
    single = chosen.algorithms[0] if isinstance(chosen, Sweep) else chosen
    return Simulation(chosen, network or model(), supply(single, federation()), **options)


def with_all_client_states(state: State) -> State:
    return state._replace(clients=state.clients.take_all()) if isinstance(state.clients, ClientStore) else state


def run(simulation: Simulation, blocks: tuple[int, ...] = (5, 4)) -> tuple:
    """All results of a run."""
    state, out = simulation.start(), []
    for num_rounds in blocks:
        state, metrics = simulation.advance(state, num_rounds)
        out.append((metrics, simulation.evaluate(state)))
    return jax.tree.map(np.array, (without_padding(with_all_client_states(state), federation().num_clients), out))


@pytest.mark.slow
@pytest.mark.parametrize("client_states", ["device", pytest.param("host", marks=pytest.mark.slow)])
def test_a_released_executor_keeps_no_data_on_the_device(client_states):
    shape = federation().examples.inputs.shape

    def count_arrays() -> int:
        gc.collect()
        return sum(array.shape == shape for array in jax.live_arrays())

    num_before, simulation = count_arrays(), build("fedavg", client_states, **quick_options())
    simulation.evaluate(simulation.start())
    assert count_arrays() > num_before
    simulation.executor.release()
    assert count_arrays() == num_before


@pytest.mark.usefixtures("full_optimization")
@pytest.mark.parametrize(
    ("name", "options", "layout", "residence"),
    [
        ("fedavg", quick_options, "chunked(1)", ("device", "stream")),
        pytest.param("scaffold", quick_options, "sharded(2, 1)", ("disk", "stream"), marks=SLOW),
        *(pytest.param(name, dict, *where, marks=SLOW) for name in ALGORITHMS for where in ELSEWHERE),
    ],
)
def test_a_streaming_run_equals_one_on_the_device_bit_for_bit(name, options, layout, residence):
    options = options() | {"layout": LAYOUTS[layout]()}
    assert is_equal(run(build(name, **options)), run(build(name, *residence, **options)))


@pytest.mark.slow
@pytest.mark.usefixtures("full_optimization")
@pytest.mark.parametrize("residence", [("host", "stream"), ("device", "stream")], ids=str)
def test_several_streaming_seeds_equal_those_on_the_device_bit_for_bit(residence):
    options = {"num_seeds": 2, "seed": 3}
    assert is_equal(run(build("fedbn", **options)), run(build("fedbn", *residence, **options)))


@pytest.mark.slow
@pytest.mark.usefixtures("full_optimization")
def test_a_streaming_sweep_equals_one_on_the_device_bit_for_bit():
    rates = Sweep(lambda rate: algorithm("fedbn", learning_rate=rate), {"rate": [0.01, 0.1]})
    assert is_equal(run(build(rates)), run(build(rates, "host", "stream")))


@pytest.mark.slow
@pytest.mark.usefixtures("full_optimization")
@pytest.mark.parametrize("residence", [("host", "stream"), ("disk", "device")], ids=str)
def test_a_streaming_run_with_error_feedback_equals_one_on_the_device_bit_for_bit(residence):
    options = quick_options() | {"uplink": (top_k(0.1, feedback="classic"), quantize(16, rotated=True))}
    assert is_equal(run(build("fedavg", **options)), run(build("fedavg", *residence, **options)))


# ---- how it comes about ----------------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def streamed():
    return build("scaffold", "disk", "stream", **quick_options())


def test_the_length_of_blocks_does_not_change_the_states(streamed):
    whole, parts = streamed.start(), streamed.start()
    whole, _ = streamed.advance(whole, 5)
    for num_rounds in (1, 3, 1):
        parts, _ = streamed.advance(parts, num_rounds)
    assert is_equal(with_all_client_states(whole), with_all_client_states(parts))


def test_two_states_can_be_advanced_alternately(streamed):
    """Data prefetched for one state must not be used for the other."""
    first, second = streamed.start(), streamed.start()
    first, _ = streamed.advance(first, 4)
    second, _ = streamed.advance(second, 2)
    first, _ = streamed.advance(first, 1)
    second, _ = streamed.advance(second, 3)
    assert is_equal(with_all_client_states(first), with_all_client_states(second))


def test_a_second_run_compiles_nothing(streamed):
    run(streamed)
    compiled = []
    jax.monitoring.register_event_duration_secs_listener(
        lambda event, seconds, **_: compiled.append(event) if event.endswith("backend_compile_duration") else None
    )
    try:
        run(streamed, blocks=(3, 2))
    finally:
        jax.monitoring.clear_event_listeners()
    assert not compiled

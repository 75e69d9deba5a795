"""Client states and examples off the device: another way to hold the same run."""

import functools
from concurrent.futures import Executor, Future

import jax
import numpy as np
import pytest

from fedjax_het import data
from fedjax_het.engine import ClientStore, Simulation, available, chunked, sharded, uniformly, vmapped
from fedjax_het.errors import InputError
from fedjax_het.types import State
from tests.harness import algorithm, difference, is_equal, model

# Tests are compiled in a hurry, in which the same operations may be fused, and rounded, otherwise from one program to
# the next. These are as a user's are.
EARNEST = {
    "xla_cpu_use_fusion_emitters": True,
    "xla_backend_optimization_level": 3,
    "xla_llvm_disable_expensive_passes": False,
}
ELSEWHERE = [("device", "stream"), ("host", "device"), ("disk", "stream")]
NAMES = ["fedavg", "scaffold", "moon", "fedbn", "fedpac", "harmofl", "fedga"]


@pytest.fixture
def in_earnest(monkeypatch):
    compile = jax.stages.Lowered.compile
    monkeypatch.setattr(jax.stages.Lowered, "compile", lambda self: compile(self, EARNEST))


@functools.cache
def federation():
    return data.toy(
        num_clients=7, image=(6, 6, 1), examples_per_client=(7, 24), valid_fraction=0.2, unseen_clients=1, num_classes=3
    )


def build(name: str, client_states: str = "device", examples: str = "device", **options) -> Simulation:
    """Few clients, some away: one that was there a round ago, or two rounds ago, is often there again."""
    options = {"layout": chunked(1), "participation": available(0.7, uniformly(3))} | options
    residence = {"client_states": client_states, "examples": examples}
    return Simulation(algorithm(name), model(), federation(), rounds=9, evaluate_every=5, **residence, **options)


def everything(state: State) -> State:
    return state._replace(clients=state.clients.everyone()) if isinstance(state.clients, ClientStore) else state


def run(simulation: Simulation, blocks: tuple[int, ...] = (5, 4)) -> tuple:
    """Everything that comes out of a run."""
    state, out = simulation.start(), []
    for num_rounds in blocks:
        state, metrics = simulation.advance(state, num_rounds)
        out.append((metrics, simulation.evaluate(state)))
    return jax.tree.map(np.array, (everything(state), out))


@functools.cache
def resident(name: str):
    return run(build(name))


@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.xdist_group(name)) for name in NAMES])
def test_it_is_the_same_run(name):
    """To rounding; not a client's state, cohort or example may be another's."""
    streamed = run(build(name, "disk", "stream"))
    assert jax.tree.structure(streamed) == jax.tree.structure(resident(name))
    assert difference(resident(name), streamed) < 1e-5


@pytest.mark.parametrize("residence", ELSEWHERE, ids=str)
def test_wherever_things_are(residence):
    assert difference(resident("scaffold"), run(build("scaffold", *residence))) < 1e-5


SLOW = pytest.mark.slow
LAYOUTS = {"sharded(2, 1)": lambda: sharded(2, 1), "chunked(2)": lambda: chunked(2), "vmapped": lambda: vmapped}


@pytest.mark.usefixtures("in_earnest")
@pytest.mark.parametrize(
    ("name", "layout"),
    [("scaffold", "sharded(2, 1)"), pytest.param("fedbn", "chunked(2)", marks=SLOW)]
    + [pytest.param(name, layout, marks=SLOW) for name in NAMES for layout in LAYOUTS],
)
def test_bit_for_bit(name, layout):
    options = {"layout": LAYOUTS[layout]()}
    expected = run(build(name, **options))
    assert is_equal(expected, run(build(name, "disk", "stream", **options)))
    assert is_equal(expected, run(build(name, "device", "stream", **options)))


def test_seeds_side_by_side():
    expected, streamed = (
        run(build("fedbn", *residence, num_seeds=2, seed=3)) for residence in (("device", "device"), ("host", "stream"))
    )
    assert difference(expected, streamed) < 1e-5


# ---- how it comes about ----------------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def streamed():
    return build("scaffold", "disk", "stream")


def test_blocks_change_nothing(streamed):
    whole, parts = streamed.start(), streamed.start()
    whole, _ = streamed.advance(whole, 5)
    for num_rounds in (1, 3, 1):
        parts, _ = streamed.advance(parts, num_rounds)
    assert is_equal(everything(whole), everything(parts))


def test_two_states_take_turns(streamed):
    """What was read ahead for one must not be taken for the other."""
    one, other = streamed.start(), streamed.start()
    one, _ = streamed.advance(one, 4)
    other, _ = streamed.advance(other, 2)
    one, _ = streamed.advance(one, 1)
    other, _ = streamed.advance(other, 3)
    assert is_equal(everything(one), everything(other))


class AtOnce(Executor):
    def submit(self, function, /, *arguments) -> Future:
        done = Future()
        done.set_result(function(*arguments))
        return done


def test_overlap_changes_nothing(streamed):
    overlapped = run(streamed)
    streamed.runner.executor, thread = AtOnce(), streamed.runner.executor
    in_turn = run(streamed)
    streamed.runner.executor = thread
    assert is_equal(overlapped, in_turn)


def test_nothing_is_compiled_on_the_way(streamed):
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


def test_a_cohort_in_no_order():
    """Where a client stood in the round before is looked up, not taken from the order of ids."""
    from fedjax_het.engine.participation import Participation

    def draw(key, num_clients):
        return jax.random.permutation(key, num_clients)[:3], jax.numpy.ones(3, bool)

    options = {"participation": Participation(lambda num_clients: 3, draw)}
    expected, streamed = (run(build("moon", *r, **options)) for r in (("device", "device"), ("host", "device")))
    assert difference(expected, streamed) < 1e-5


def test_several_processes_are_refused(monkeypatch):
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    with pytest.raises(InputError, match="client states: host, examples: device: not with several processes"):
        build("fedavg", "host")

"""Sharding of client states over any number of devices, with equal results."""

import jax
import jax.numpy as jnp
import pytest

from fedjax_het import models, tree
from fedjax_het.engine import Checkpoints, Simulation, chunked, sharded, vmapped
from fedjax_het.engine.evaluation.personal_means import mean_personal_variables
from fedjax_het.engine.parallel.layout import Layout
from fedjax_het.errors import InputError
from fedjax_het.types import ClientState
from tests.harness import ROUNDING, algorithm, difference, federation, model, without_padding

pytestmark = pytest.mark.extended

HIDDEN = 20_000  # the model outweighs everything else; nothing is run
QUICK = [vmapped, sharded(3), sharded(2, 2)]
LAYOUTS = [vmapped, chunked(2), sharded(2), sharded(3), sharded(4), sharded(4, 1), sharded(2, 2)]


def build(name: str, layout: Layout, num_clients: int = 5, network=None, **options) -> Simulation:
    options = {"rounds": 4, "cohort_size": 3, "evaluate_every": 4} | options
    return Simulation(algorithm(name), network or model(), federation(num_clients), layout=layout, **options)


# ---- memory ----------------------------------------------------------------------------------------------------------
def peak_models_per_device(num_clients: int, num_seeds: int) -> tuple[float, float]:
    """The memory of SCAFFOLD's rounds and of its initialization on each of four devices, in models."""
    network = models.mlp(3, hidden=(HIDDEN,))
    simulation = build("scaffold", sharded(4), num_clients, network, cohort_size=4, num_seeds=num_seeds)
    runner = simulation.executor
    start = runner.programs.initialization(runner.programs.keys).begin_compilation().result().memory_analysis()
    model_bytes = tree.num_bytes(runner.traced.shapes.state.server.shared)
    return runner.round_bytes / model_bytes, (start.output_size_in_bytes + start.temp_size_in_bytes) / model_bytes


@pytest.mark.slow
@pytest.mark.parametrize("num_seeds", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_each_device_holds_its_share_of_the_client_states(num_seeds):
    few, many = (peak_models_per_device(num_clients, num_seeds) for num_clients in (8, 40))
    added = num_seeds * (40 - 8) / 4
    assert many[0] - few[0] == pytest.approx(added, abs=1)
    joined = (40 - 8) / 4 if num_seeds > 1 else 0  # on CPUs, one run beside all of them
    assert many[1] - few[1] == pytest.approx(added + joined, abs=1)


@pytest.mark.parametrize("layout", QUICK, ids=str)
def test_client_states_are_split_evenly_over_the_devices(layout):
    state = build("scaffold", layout).start()
    rows = state.clients.rounds.shape[1]
    assert rows >= 5 and rows % layout.num_devices == 0
    assert rows == 5 or layout.mesh
    for leaf in jax.tree.leaves(state.clients):
        assert {shard.data.shape[1] for shard in leaf.addressable_shards} == {rows // layout.num_devices}


# ---- results ---------------------------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def runs():
    """For FedBN, which keeps norms with the clients: {layout: (simulation, state after 2 rounds, after 4)}."""
    found = {}
    for layout in LAYOUTS:
        simulation = build("fedbn", layout, num_seeds=2)
        half, _ = simulation.advance(simulation.start(), 2)
        kept = jax.tree.map(jnp.copy, half)
        found[str(layout)] = simulation, half, simulation.advance(kept, 2)[0]
    return found


@pytest.mark.slow
@pytest.mark.parametrize("layout", LAYOUTS[1:], ids=str)
def test_states_and_evaluations_do_not_depend_on_the_layout(runs, layout):
    simulation, _, end = runs[str(layout)]
    plain, _, expected = runs["vmapped"]
    assert difference(without_padding(expected), without_padding(end)) < ROUNDING
    assert difference(plain.evaluate(expected), simulation.evaluate(end)) < ROUNDING


@pytest.mark.slow
@pytest.mark.parametrize("saved", ["vmapped", "sharded(3)", "sharded(4)"])
@pytest.mark.parametrize("resumed", ["vmapped", "sharded(2)", "sharded(4)"])
def test_a_checkpoint_resumes_in_another_layout(runs, tmp_path, saved, resumed):
    _, half, expected = runs[saved]
    simulation = runs[resumed][0]
    Checkpoints(tmp_path, num_clients=5).save(2, half)
    restored = Checkpoints(tmp_path, num_clients=5).restore(simulation.start())
    assert jax.tree.map(lambda x: x.sharding, restored) == jax.tree.map(lambda x: x.sharding, simulation.start())
    assert difference(without_padding(half), without_padding(restored)) == 0
    assert difference(without_padding(expected), without_padding(simulation.advance(restored, 2)[0])) < ROUNDING


def test_a_checkpoint_of_another_number_of_clients_is_refused(tmp_path):
    Checkpoints(tmp_path, num_clients=5).save(2, build("fedbn", sharded(4), num_seeds=2).start())
    with pytest.raises(InputError, match=r"number of clients.*\[2, 5.* in the checkpoint and .*\[2, 6"):
        Checkpoints(tmp_path, num_clients=6).restore(build("fedbn", sharded(3), 6, num_seeds=2).start())


@pytest.mark.slow
def test_padding_rows_are_excluded_from_mean_personal_variables():
    personal = {"scale": jnp.array([1.0, 3.0, 0.0, 0.0])}
    for rounds, expected in (([0, 0, 0, 0], 2.0), ([0, 1, 0, 0], 3.0)):
        assert mean_personal_variables(ClientState(personal, {}, jnp.array(rounds)), 2)["scale"] == expected

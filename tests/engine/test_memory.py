"""What a round keeps at once, read off the compiled program."""

from dataclasses import replace

import jax
import pytest

from fedjax_het import models, tree
from fedjax_het.engine.layout import chunked, sharded
from fedjax_het.engine.round import make_round
from tests.harness import algorithm, difference, federation, plain, run

HIDDEN = 50_000  # the model outweighs everything else; nothing is run


def models_in_memory(name: str, num_clients: int, layout) -> float:
    """Temporaries of a round's program, in models."""
    federated = federation(num_clients)
    round = make_round(
        algorithm(name), models.mlp(3, hidden=(HIDDEN,)), num_clients, layout=layout, prepare=federated.prepare
    )
    state = jax.eval_shape(round.init, jax.random.key(0), federated.data)
    step = jax.jit(round.step, donate_argnums=0).lower(state, federated.data, jax.random.key(0)).compile()
    return step.memory_analysis().temp_size_in_bytes / tree.num_bytes(state.server.shared)


@pytest.mark.parametrize("name", ["fedavg", "fedadam", "fediir", "fedcm", "fednova"])
def test_a_mean_by_weights_known_beforehand_stacks_no_updates(name):
    few, many = (models_in_memory(name, size, chunked(1)) for size in (4, 12))
    assert many - few < 1
    assert many < 6


def test_a_sum_of_reports_stacks_none_of_them():
    """SCAFFOLD's clients leave the round with their states, one model each."""
    few, many = (models_in_memory("scaffold", size, chunked(1)) for size in (4, 12))
    assert 7 < many - few < 9


def test_nor_does_it_where_devices_share_the_cohort():
    assert models_in_memory("fedavg", 12, sharded(2, 1)) < 6


def test_an_aggregator_that_edits_updates_stacks_them_once():
    few, many = (models_in_memory("fedld", size, chunked(1)) for size in (4, 12))
    assert 7 < many - few < 9


def test_the_sum_on_the_way_is_the_mean_of_the_stack():
    fedavg = algorithm("fedavg")
    stacking = replace(fedavg, aggregator=fedavg.aggregator._replace(summand=None))
    from_stack = make_round(stacking, plain("fedavg").problem.model, 5, prepare=federation().prepare)
    assert difference(run(from_stack)[0], run(plain("fedavg"))[0]) < 1e-6

"""Memory of a round, read from the compiled program."""

import math
import re
from dataclasses import replace

import jax
import pytest

from fedjax_het import models, tree
from fedjax_het._internal.keys import make_key
from fedjax_het.engine.parallel.layout import chunked, sharded
from fedjax_het.engine.parallel.update_stack import _EXCHANGE_BLOCK
from fedjax_het.engine.round.program import make_round
from fedjax_het.server.aggregators import mean
from fedjax_het.server.weightings import WEIGHTINGS
from tests.harness import algorithm, difference, federation, plain_round, run

pytestmark = pytest.mark.extended

HIDDEN = 50_000  # the model outweighs everything else; nothing is run


def compile_round(name: str, num_clients: int, layout, **options):
    """(a round's program, the bytes of a model)."""
    federated, chosen = federation(num_clients), algorithm(name, **options)
    round = make_round(chosen, models.mlp(3, hidden=(HIDDEN,)), num_clients, layout=layout, prepare=federated.prepare)
    state = jax.eval_shape(round.init, make_key(0), federated.data)
    step = jax.jit(round.step, donate_argnums=0).lower(state, federated.data, make_key(0)).compile()
    return step, tree.num_bytes(state.server.shared)


def models_in_memory(name: str, num_clients: int, layout, **options) -> float:
    """Temporaries of a round's program, in models."""
    step, model = compile_round(name, num_clients, layout, **options)
    return step.memory_analysis().temp_size_in_bytes / model


@pytest.mark.parametrize("name", ["fedavg", "fediir", "fednova"])
def test_a_mean_with_weights_known_beforehand_stacks_no_updates(name):
    few, many = (models_in_memory(name, size, chunked(1)) for size in (4, 12))
    assert many - few < 1
    assert many < 6


@pytest.mark.slow
def test_a_sum_of_reports_stacks_no_reports():
    """SCAFFOLD's clients leave the round with their states, one model each."""
    few, many = (models_in_memory("scaffold", size, chunked(1)) for size in (4, 12))
    assert 7 < many - few < 9


def test_a_mean_on_several_devices_stacks_no_updates():
    assert models_in_memory("fedavg", 12, sharded(2, 1)) < 6


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fedld", "hierarchical"])
def test_an_aggregator_that_edits_updates_stacks_them_once(name):
    few, many = (models_in_memory(name, size, chunked(1)) for size in (4, 12))
    assert 7 < many - few < 9


@pytest.mark.slow
def test_a_bfloat16_stack_takes_half_the_memory():
    few, many = (models_in_memory("fedld", size, chunked(1), aggregation={"stack": "bfloat16"}) for size in (4, 12))
    assert 3.5 < many - few < 4.5


@pytest.mark.slow
@pytest.mark.parametrize(("stack", "share"), [("float32", 4), ("bfloat16", 2)])
def test_each_device_stacks_its_own_share(stack, share):
    few, many = (models_in_memory("fedmgc", size, sharded(2, 1), aggregation={"stack": stack}) for size in (4, 12))
    assert share - 0.5 < many - few < share + 0.5


@pytest.mark.parametrize(("name", "stacks"), [("fedld", 1), ("fedmgc", 1), ("hierarchical", 4)])
def test_devices_gather_no_stack(name, stacks):
    """They exchange blocks, and sum one model and [clients, clients] matrices, one or one per tensor."""
    step, model = compile_round(name, 12, sharded(2, 1))
    collectives = re.findall(r"= (\S.*?) (all-gather|all-to-all|all-reduce)(?:-start)?\(", step.as_text())
    assert {kind for _, kind in collectives} == {"all-gather", "all-to-all", "all-reduce"}
    limits = {
        "all-gather": stacks * 12,
        "all-to-all": _EXCHANGE_BLOCK,
        "all-reduce": model / 4 + stacks * 12 * 12 + 100,
    }
    assert all(num_entries(shapes) <= limits[kind] for shapes, kind in collectives)


def num_entries(shapes: str) -> int:
    return sum(math.prod(map(int, shape.split(","))) for shape in re.findall(r"\[([\d,]+)\]", shapes))


def test_the_streaming_sum_equals_the_mean_of_the_stack():
    fedavg = algorithm("fedavg")
    by_examples = WEIGHTINGS["samples"]._replace(per_client=None)
    stacking = replace(fedavg, aggregator=mean(by_examples))
    from_stack = make_round(stacking, plain_round("fedavg").problem.model, 5, prepare=federation().prepare)
    assert difference(run(from_stack)[0], run(plain_round("fedavg"))[0]) < 1e-6

"""Independence of a score from the other clients and held-out sets that are evaluated."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_het import data, models, tree
from fedjax_het._internal.keys import make_key
from fedjax_het.engine import Simulation, flatten_evaluation
from fedjax_het.engine.evaluation.evaluate import evaluate_model, held_out_batches
from fedjax_het.models import from_flax
from fedjax_het.models._densenet import DenseNet
from fedjax_het.models._norms import NORMS
from fedjax_het.models._resnet import ResNet
from fedjax_het.problem import Problem
from fedjax_het.types import Context, Rows
from tests.harness import algorithm, map_rows

pytestmark = pytest.mark.extended

BATCH = 8  # so that clients have several batches, of several sizes
NETWORKS = {
    "mlp": lambda norm: models.mlp(3, hidden=(8,), norm=norm),
    "cnn": lambda norm: models.cnn(3, (4, 8), (8,), kernel=3, norm=norm),
    "resnet": lambda norm: from_flax(ResNet(3, (1, 1), (4, 8), False, "small", norm, "auto")),
    "densenet": lambda norm: from_flax(DenseNet(3, (1, 1), (8, 4, 4), 0, "small", norm, "auto")),
    "unet": lambda norm: models.unet(3, width=0.1, levels=2, norm=norm),
}


@pytest.fixture(scope="module")
def federation():
    sizes = {"examples_per_client": (12, 60), "client_test_fraction": 0.5, "valid_fraction": 0.2}
    return data.toy(num_clients=3, image=(16, 16, 3), feature_shift=3.0, **sizes)


def evaluate(network, variables, federation):
    return evaluate_model(Problem(network, (), federation.prepare), variables, federation, batch_size=BATCH)


def with_masks(federation):
    labels = np.broadcast_to(federation.examples.labels[:, None, None], federation.examples.inputs.shape[:3])
    return replace(
        federation, data=federation.data._replace(examples=federation.examples._replace(labels=labels.copy()))
    )


def without_others(federation, client):
    own = map_rows(federation.data, lambda rows: Rows(rows.index[client:][:1], rows.count[client:][:1]))
    return replace(federation, data=own, test=None, client_names=federation.client_names[client:][:1])


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in ("cnn", "mlp") else pytest.mark.slow) for name in NETWORKS]
)
def test_scores_do_not_depend_on_other_clients(name, norm, federation):
    if name == "unet":
        federation = with_masks(federation)
    network = NETWORKS[name](norm)
    variables = network.init(make_key(0), federation.prepare(federation.examples.inputs[:1]))
    together = evaluate(network, variables, federation)
    for client in range(3):
        alone = evaluate(network, variables, without_others(federation, client))
        for split in ("clients", "valid"):
            ours, expected = (
                np.array([metrics.loss, metrics.accuracy, metrics.num_examples])[:, number]
                for metrics, number in ((getattr(together, split), client), (getattr(alone, split), 0))
            )
            np.testing.assert_allclose(ours, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_batches_are_even_and_hold_one_client_only(federation):
    """Against the definition, one batch after the other, with a network that normalises by its batch."""
    network = NETWORKS["cnn"]("batch_stat")
    variables = network.init(make_key(0), federation.prepare(federation.examples.inputs[:1]))
    metrics, rows = evaluate(network, variables, federation).clients, federation.data.test
    for client, (index, count) in enumerate(zip(rows.index, rows.count, strict=True)):
        num_batches = -(-count // BATCH)
        parts = np.split(index[:count], range(-(-count // num_batches), count, -(-count // num_batches)))
        assert len(parts) == num_batches and max(map(len, parts)) <= BATCH
        losses = np.concatenate([losses_of(network, variables, federation, part) for part in parts])
        assert metrics.loss[client] == pytest.approx(losses.mean(), rel=1e-5)


def test_the_variables_that_an_algorithm_chooses_are_tested(federation):
    network = NETWORKS["mlp"]("none")
    halved = replace(algorithm("fedavg"), evaluated=lambda server: tree.scale(0.5, server.shared))
    simulation = Simulation(halved, network, federation, rounds=1)
    state = simulation.start()
    variables = jax.tree.map(lambda x: x[0], state.server.shared)
    chosen = flatten_evaluation(jax.tree.map(lambda x: x[0], simulation.evaluate(state)))
    half, whole = (flatten_evaluation(evaluate(network, tree.scale(x, variables), federation)) for x in (0.5, 1.0))
    for name, value in chosen.items():
        np.testing.assert_allclose(value, half[name], rtol=1e-5)
    assert chosen["clients/loss_mean"] != pytest.approx(whole["clients/loss_mean"], rel=1e-3)


def losses_of(network, variables, federation, part):
    context = Context(jnp.ones(len(part)), jnp.int32(0), make_key(0), False)
    (features, _), _ = network.encode(variables, federation.prepare(federation.examples.inputs[part]), context)
    logits = np.asarray(network.classify(variables["params"], features), np.float64)
    logits -= logits.max(axis=1, keepdims=True)
    labels = federation.examples.labels[part]
    return np.log(np.exp(logits).sum(axis=1)) - logits[np.arange(len(part)), labels]


@pytest.mark.parametrize("batch_size", [1, 4, 256])
@pytest.mark.parametrize("sizes", [[0, 0], [5], [3, 0, 900], [20] * 50 + [1000], list(range(40))])
def test_every_held_out_example_is_in_one_batch_of_its_own_client(sizes, batch_size):
    federation = data.toy(num_clients=1, client_test_fraction=0.0)
    begin = np.cumsum([0, *sizes])
    index = np.zeros((len(sizes), max(1, *sizes)), np.int32)
    for row, first, size in zip(index, begin, sizes, strict=False):
        row[:size] = first + np.arange(size)
    test = Rows(index, np.array(sizes, np.int32))
    none = Rows(index[:, :1], np.zeros(len(sizes), np.int32))
    counted = replace(federation, test=None, data=federation.data._replace(test=test, train=none, valid=none))
    held, groups = held_out_batches(counted, batch_size)
    assert groups == [("clients", len(sizes))] and len(held) <= 2
    found = {segment: [] for segment in range(len(sizes) + 1)}
    for batches in held:
        assert batches.index.shape[1] * batches.index.shape[2] <= max(batch_size, 1)
        rows = batches.index.reshape(-1, batches.index.shape[2])
        for entries, count, segment in zip(rows, batches.count.ravel(), batches.segment.ravel(), strict=True):
            assert count <= len(entries)
            found[int(segment)] += entries[:count].tolist()
    assert not found.pop(len(sizes))
    expected = {client: list(range(begin[client], begin[client + 1])) for client in range(len(sizes))}
    assert {client: sorted(entries) for client, entries in found.items()} == expected

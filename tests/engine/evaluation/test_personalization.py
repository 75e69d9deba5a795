"""Models that a rule makes for the evaluation: their values, and their independence of layout and location."""

import functools
from dataclasses import replace

import jax
import numpy as np
import optax
import pytest

from fedjax_het import data, models, tree
from fedjax_het._internal.keys import make_key
from fedjax_het.algorithm import Memory
from fedjax_het.client.local_updates import sgd
from fedjax_het.client.personalization import fine_tuned
from fedjax_het.engine import Simulation, chunked
from fedjax_het.engine.round import participation
from fedjax_het.errors import InputError
from fedjax_het.sharing import HEAD
from fedjax_het.types import Context
from tests.harness import algorithm, is_equal

pytestmark = pytest.mark.extended


@functools.cache
def federation():
    sizes = {"examples_per_client": (7, 24), "valid_fraction": 0.2, "num_classes": 3}
    return data.toy(num_clients=5, image=(6, 6, 1), **sizes)


def simulate(name: str = "fedavg", personalize=None, client_states="device", examples="device", **slots) -> Simulation:
    built = replace(algorithm(name, shuffle=False), personalize=personalize, **slots)
    where = {"client_states": client_states, "examples": examples}
    options = {"rounds": 2, "cohort_size": 2, "personal_on_test": True, "layout": chunked(1)} | where
    return Simulation(built, network(), federation(), **options)


def network():
    return models.mlp(3, hidden=(4,), norm="none")


def trained_state(simulation: Simulation):
    return simulation.advance(simulation.start(), 2)[0]


def test_a_rule_that_returns_the_received_model_scores_as_the_server_does():
    simulation = simulate(personalize=lambda problem, view, key: view.start)
    assert simulation.has_personal
    evaluation = simulation.evaluate(trained_state(simulation))
    for own, common in ((evaluation.personal, evaluation.clients), (evaluation.personal_valid, evaluation.valid)):
        np.testing.assert_allclose(own.loss, common.loss, rtol=1e-5)
    np.testing.assert_allclose(evaluation.personal_test.loss[0], np.repeat(evaluation.test.loss, 5), rtol=1e-5)


@pytest.mark.slow
def test_fine_tuning_changes_the_scores_and_not_the_state():
    """Each client is tuned from the server's model, on its own examples."""
    simulation = simulate(personalize=fine_tuned(sgd(0.5, batch_size=32, shuffle=False)))
    state = trained_state(simulation)
    before = jax.tree.map(np.asarray, state)
    evaluation = simulation.evaluate(state)
    assert is_equal(before, state)
    shared, rows = jax.tree.map(lambda x: x[0], state.server.shared), federation().data
    inputs, labels = federation().prepare(rows.examples.inputs), rows.examples.labels

    def loss(params, index):
        context = Context(np.ones(len(index), np.float32), 2, make_key(0), True)
        (features, _), _ = network().encode({"params": params}, inputs[index], context)
        logits = network().classify(params, features)
        return optax.softmax_cross_entropy_with_integer_labels(logits, labels[index]).mean()

    for client in range(5):
        training, held = (part.index[client][: part.count[client]] for part in (rows.train, rows.test))
        gradient = jax.grad(loss)(shared["params"], training)
        tuned = tree.subtract(shared["params"], tree.scale(0.5, gradient))
        assert evaluation.personal.loss[0, client] == pytest.approx(float(loss(tuned, held)), rel=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize(
    "where", [("host", "stream"), pytest.param(("disk", "device"), marks=pytest.mark.slow)], ids=str
)
def test_own_models_off_the_device_score_the_same(where):
    """The rule reads memory, personal leaves, training examples and the key."""

    def personalize(problem, view, key):
        tuned = fine_tuned(sgd(0.1, batch_size=8, only=HEAD))(problem, view, key)
        return tree.scale(1 + view.memory["count"], tuned)

    count = Memory(lambda variables: np.float32(0), lambda problem, view: view.memory["count"] + 1)
    slots = {"personalize": personalize, "memory": {"count": count}}
    scores = []
    for place in (("device", "device"), where):
        simulation = simulate("fedper", client_states=place[0], examples=place[1], **slots)
        scores.append(simulation.evaluate(trained_state(simulation)))
    for ours, theirs in zip(jax.tree.leaves(scores[0]), jax.tree.leaves(scores[1]), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5)


@pytest.mark.slow
def test_fine_tuning_is_a_function_of_the_round_and_the_client():
    """Dropped-out clients and the block size of the evaluation do not change the result."""
    rule = {"personalize": fine_tuned(sgd(0.1, batch_size=2))}
    simulation = simulate(**rule)
    state = trained_state(simulation)
    built = replace(algorithm("fedavg", shuffle=False), **rule)
    absent = participation.bernoulli(0.5, participation.uniform(3))
    other = Simulation(built, network(), federation(), rounds=2, participation=absent, personal_on_test=True)
    first, again = simulation.evaluate(state), other.evaluate(state)
    np.testing.assert_allclose(first.personal.loss, again.personal.loss, rtol=1e-5)


def test_a_rule_that_reads_an_empty_slot_is_refused():
    with pytest.raises(InputError, match="personalization reads memory\\['other'\\], but this algorithm fills only"):
        simulation = simulate(personalize=lambda problem, view, key: view.memory["other"])
        simulation.evaluate(simulation.start())

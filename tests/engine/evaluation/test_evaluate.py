"""The compiled evaluation against a loop in NumPy."""

import jax
import numpy as np
import pytest

from fedjax_het import data, tree
from fedjax_het._internal.keys import make_key
from fedjax_het.engine import Simulation
from fedjax_het.engine.evaluation.personal_means import mean_personal_variables
from fedjax_het.types import Context
from tests.harness import algorithm, model

pytestmark = pytest.mark.extended


@pytest.fixture(scope="module")
def trained():
    sizes = {"examples_per_client": (9, 30), "valid_fraction": 0.2}
    federation = data.toy(num_clients=4, image=(6, 6, 1), unseen_clients=2, **sizes)
    built = Simulation(algorithm("fedbn"), model(), federation, rounds=1, cohort_size=2, personal_on_test=True)
    state, _ = built.advance(built.start(), 1)
    return federation, built, state, built.evaluate(state)


def by_hand(federation, variables, rows):
    """(loss, accuracy) of these examples, one model."""
    inputs = federation.prepare(federation.examples.inputs[rows])
    context = Context(np.ones(len(rows)), 0, make_key(0), False)
    network = model()
    (features, _), _ = network.encode(variables, inputs, context)
    logits = np.asarray(network.classify(variables["params"], features), np.float64)
    labels = federation.examples.labels[rows]
    top = logits.max(axis=1, keepdims=True)
    losses = np.log(np.exp(logits - top).sum(1)) + top[:, 0] - logits[np.arange(len(rows)), labels]
    return losses.mean(), (logits.argmax(1) == labels).mean()


def whole_model(state, personal):
    first = jax.tree.map(lambda x: x[0], state.server.shared)
    return tree.merge(first, personal)


def test_the_global_model_is_evaluated_on_every_client_newcomer_and_test_example(trained):
    federation, _, state, evaluation = trained
    clients = jax.tree.map(lambda x: x[0], state.clients)
    variables = whole_model(state, mean_personal_variables(clients, 4))
    groups = [(evaluation.clients, federation.data.test), (evaluation.newcomers, federation.newcomers.test)]
    groups.append((evaluation.valid, federation.data.valid))
    for metrics, rows in groups:
        for i, (index, count) in enumerate(zip(rows.index, rows.count, strict=True)):
            loss, accuracy = by_hand(federation, variables, index[:count])
            assert metrics.num_examples[0, i] == count
            assert (metrics.loss[0, i], metrics.accuracy[0, i]) == pytest.approx((loss, accuracy), abs=1e-5)
    loss, accuracy = by_hand(federation, variables, federation.test.index)
    assert (evaluation.test.loss[0], evaluation.test.accuracy[0]) == pytest.approx((loss, accuracy), abs=1e-5)


@pytest.mark.parametrize(("part", "split"), [("personal", "test"), ("personal_valid", "valid")])
def test_personal_models_are_evaluated_on_their_own_clients(trained, part, split):
    federation, _, state, evaluation = trained
    rows, found = getattr(federation.data, split), getattr(evaluation, part)
    assert np.array_equal(found.num_examples[0], rows.count)
    for i, (index, count) in enumerate(zip(rows.index, rows.count, strict=True)):
        personal = jax.tree.map(lambda x, i=i: x[0, i], state.clients.personal)
        loss, accuracy = by_hand(federation, whole_model(state, personal), index[:count])
        ours = (found.loss[0, i], found.accuracy[0, i])
        assert ours == pytest.approx((loss, accuracy), abs=1e-5)


def test_personal_models_are_evaluated_on_the_common_test_set(trained):
    federation, _, state, evaluation = trained
    assert evaluation.personal_test.loss.shape == (1, 4)
    for i in range(4):
        personal = jax.tree.map(lambda x, i=i: x[0, i], state.clients.personal)
        loss, accuracy = by_hand(federation, whole_model(state, personal), federation.test.index)
        ours = (evaluation.personal_test.loss[0, i], evaluation.personal_test.accuracy[0, i])
        assert ours == pytest.approx((loss, accuracy), abs=1e-5)
    assert np.all(evaluation.personal_test.num_examples == federation.test.count)


def test_newcomers_use_the_mean_personal_variables_of_trained_clients(trained):
    _, built, state, _ = trained
    clients = jax.tree.map(lambda x: np.asarray(x[0]), state.clients)
    has_trained = clients.rounds > 0
    assert 0 < has_trained.sum() < 4
    mean = jax.tree.map(lambda x: x[has_trained].mean(axis=0), clients.personal)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), mean, mean_personal_variables(clients, 4))
    start = jax.tree.map(lambda x: x[0], built.start().clients)
    assert np.all(np.isfinite(jax.tree.leaves(mean_personal_variables(start, 4))[0]))

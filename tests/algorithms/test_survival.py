"""Cox's model: its loss and the C-index against brute force, training, and errors of algorithms that need classes."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_het import data, engine, models
from fedjax_het.algorithms import ALGORITHMS
from fedjax_het.cli.runs import records
from fedjax_het.client.objectives import with_task_loss
from fedjax_het.errors import InputError
from fedjax_het.survival import concordance, cox_losses
from tests.algorithms.test_segmentation import DISTILLED
from tests.harness import supply

pytestmark = pytest.mark.extended

RNG = np.random.default_rng(0)
READ_CLASSES = (
    "fedlc",
    "fedrs",
    "fedntd",
    "fedproto",
    "fedpac",
    "fedsr",
    "fedrd",
    "fedmgc",
    "fpl",
    "fedrod",
    "feddbe",
    "fedas",
    "gpfl",
    "fedfomo",
    "pfedfda",
)


def draw(num):
    """(logits, labels, is_example) with equal times, equal risks and padding."""
    risk, time = RNG.integers(-2, 3, num) / 2, RNG.integers(0, 5, num)
    logits = np.stack([RNG.normal(size=num), np.zeros(num)], axis=1)
    logits[:, 1] = logits[:, 0] + risk
    labels = np.where(RNG.random(num) < 0.6, 1 + time, -1 - time)
    return logits.astype(np.float32), labels.astype(np.float32), RNG.random(num) < 0.8


def brute_concordance(risk, time, event):
    pairs, wins = 0, 0.0
    for i in range(len(risk)):
        for j in range(len(risk)):
            if event[i] and (time[j] > time[i] or (time[j] == time[i] and not event[j])):
                pairs, wins = pairs + 1, wins + (risk[i] > risk[j]) + 0.5 * (risk[i] == risk[j])
    return wins / pairs


def brute_loss(risk, time, event):
    losses = [
        event[i] * (np.log(sum(np.exp(risk[j]) for j in range(len(risk)) if time[j] >= time[i])) - risk[i])
        for i in range(len(risk))
    ]
    return np.sum(losses)


def test_loss_and_concordance_agree_with_brute_force():
    for _ in range(20):
        logits, labels, is_example = draw(25)
        risk = (logits[:, 1] - logits[:, 0]).round(3)[is_example]
        time, event = np.abs(labels)[is_example], labels[is_example] > 0
        loss = cox_losses(jnp.asarray(logits), jnp.asarray(labels), jnp.asarray(is_example)).sum()
        np.testing.assert_allclose(loss, brute_loss(risk, time, event), rtol=1e-4)
        shown = jnp.round(jnp.stack([0 * logits[:, 0], logits[:, 1] - logits[:, 0]], axis=1), 3)
        index, _ = concordance(shown, jnp.asarray(labels), jnp.asarray(is_example))
        np.testing.assert_allclose(index, brute_concordance(risk, time, event), rtol=1e-5)


def test_without_a_comparable_pair_there_is_no_concordance():
    logits, labels = jnp.zeros((2, 2)), jnp.array([-1.0, -3.0])
    assert tuple(concordance(logits, labels, jnp.ones(2, bool))) == (0, False)
    assert cox_losses(logits, labels, jnp.ones(2, bool)).sum() == 0


def federation(**options):
    """Three regions; the hazard rises with the first of two features."""
    rng, num = np.random.default_rng(1), 150
    inputs = rng.normal(size=(num, 2)).astype(np.float32)
    time = rng.exponential(np.exp(-1.5 * inputs[:, 0])).astype(np.float32)
    censored = rng.exponential(2.0, num).astype(np.float32)
    labels = np.where(time <= censored, 1 + time, -1 - censored).astype(np.float32)
    dataset = data.assemble(
        "regions", inputs, labels, class_names=("alive", "dead"), domains=np.arange(num) % 3, domain_names="abc"
    )
    return data.federate(dataset, data.by_domain(), 0, **options)


def with_loss(name, task_loss):
    algorithm = ALGORITHMS[name](learning_rate=0.1, batch_size=16, **DISTILLED.get(name, {}))
    return replace(algorithm, objective=with_task_loss(algorithm.objective, task_loss))


def survival_run(name, task_loss="cox", **options):
    algorithm = with_loss(name, task_loss)
    federated = supply(algorithm, federation())
    return engine.Simulation(algorithm, models.mlp(2, hidden=()), federated, rounds=10, **options)


def test_a_linear_model_learns_the_hazard():
    chosen, run = federation(), survival_run("fedavg")
    state, metrics = run.advance(run.start(), 10)
    assert metrics.loss[0, -1] < metrics.loss[0, 0]
    head = state.server.shared["params"]["classifier"]["kernel"][0]
    effect = np.asarray(head[:, 1] - head[:, 0])
    assert effect[0] > 0.7 and abs(effect[1]) < 0.5
    rows = chosen.test.index[: int(chosen.test.count)]
    labels, risk = chosen.examples.labels[rows], chosen.examples.inputs[rows] @ effect
    figures = engine.flatten_evaluation(run.evaluate(state))
    expected = brute_concordance(risk, np.abs(labels), labels > 0)
    assert expected > 0.65
    np.testing.assert_allclose(figures["test/accuracy"][0], expected, rtol=1e-5)
    loss = brute_loss(risk, np.abs(labels), labels > 0) / len(rows)
    np.testing.assert_allclose(figures["test/loss"][0], loss, rtol=1e-4)


def test_losses_of_classes_are_refused():
    with pytest.raises(InputError, match="the labels are survival times"):
        survival_run("fedavg", task_loss="cross_entropy")
    with pytest.raises(InputError, match="'cox' is for survival times"):
        engine.Simulation(
            with_loss("fedavg", "cox"), models.mlp(2, hidden=()), data.toy(num_clients=2, num_classes=2), rounds=1
        )


@pytest.mark.parametrize("examples", ["device", "stream"])
def test_a_client_without_comparable_pairs_has_no_score(examples):
    whole = federation(client_test_fraction=0.3)
    labels = np.array(whole.examples.labels)
    own = whole.data.test.index[1][: whole.data.test.count[1]]
    labels[own] = -np.abs(labels[own])  # no event
    chosen = replace(whole, data=whole.data._replace(examples=whole.examples._replace(labels=labels)))
    options = {"rounds": 2, "metrics": ("c_index",), "examples": examples}
    with jax.debug_nans(True):
        run = engine.Simulation(with_loss("fedavg", "cox"), models.mlp(2, hidden=()), chosen, **options)
        evaluation = run.evaluate(run.advance(run.start(), 2)[0])
    assert np.isnan(evaluation.clients.accuracy[0]).tolist() == [False, True, False]
    figures = engine.flatten_evaluation(evaluation)
    for statistic in ("mean", "weighted", "std", "worst10", "min", "max", "jain", "gini"):
        expected = figures[f"clients/c_index_{statistic}"]
        np.testing.assert_allclose(figures[f"clients/accuracy_{statistic}"], expected, rtol=1e-5, atol=1e-6)
    rows = records.client_rows(evaluation, chosen, [0])
    assert [row["accuracy"] is None for row in rows] == [False, True, False]


@pytest.mark.slow
@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_algorithm_trains_on_survival_or_refuses_it(name):
    try:
        run = survival_run(name)
    except InputError:
        return
    state, metrics = run.advance(run.start(), 2)
    assert np.isfinite(metrics.loss).all()
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(state.server.shared))
    assert name not in READ_CLASSES

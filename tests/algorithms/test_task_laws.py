"""Laws of methods for data that change with the round."""

import jax
import numpy as np
import pytest

import fedjax_het as fh
from fedjax_het import tree
from fedjax_het._internal.keys import make_key
from fedjax_het.engine import Simulation
from fedjax_het.errors import InputError
from tests.harness import TINY, compose, difference, federation, run, train


def train_on_tasks(algorithm: fh.Algorithm) -> tuple[fh.data.Federation, list]:
    """Two rounds for each of two tasks of five classes of digits; the states before and after each task, in NumPy."""
    rule = fh.data.drift.tasks(num_tasks=2, rounds_per_task=2)
    whole = fh.data.federate(fh.data.load("digits"), fh.data.iid(), 4, test_fraction=0, drift=rule)
    simulation = Simulation(algorithm, fh.models.mlp(10, hidden=(8,)), whole, rounds=4)
    state = simulation.start()
    states = [jax.tree.map(np.array, state)]
    for _ in range(2):
        state, _ = simulation.advance(state, 2)
        states.append(jax.tree.map(np.array, state))
    return whole, states


@pytest.mark.extended
@pytest.mark.parametrize("lam", [0.0, 1.0])
def test_fedlwf_changes_the_head_of_old_classes_by_distillation_alone(lam):
    whole, states = train_on_tasks(fh.algorithms.fedlwf(lam=lam, **TINY))
    first, second, third = (state.server.shared["params"]["classifier"]["kernel"][0] for state in states)
    is_old = whole.phases.has_class[0]
    assert np.array_equal(np.any(first != second, axis=0), is_old)
    assert np.array_equal(np.any(second != third, axis=0), np.ones(10, bool) if lam else ~is_old)


@pytest.mark.extended
def test_glfc_keeps_images_and_a_model_of_the_first_task():
    whole, (_, middle, end) = train_on_tasks(fh.algorithms.glfc(**TINY, exemplars_per_class=2))
    is_old = whole.phases.has_class[0]
    before, after = middle.clients.memory["exemplars"], end.clients.memory["exemplars"]
    assert np.array_equal(before["is_known"][0], np.tile(is_old, (4, 1))) and after["is_known"].all()
    assert np.array_equal(before["inputs"][:, :, is_old], after["inputs"][:, :, is_old])
    tasks = end.clients.memory["tasks"]
    assert np.array_equal(tasks["old"][0], np.tile(is_old, (4, 1)))
    kept, sent = (model["params"]["classifier"]["bias"] for model in (tasks["model"], middle.server.shared))
    assert np.array_equal(kept[0], np.tile(sent[0], (4, 1)))


@pytest.mark.extended
def test_fedlwf_without_phases_is_fedavg():
    assert difference(train("fedavg", weighting="uniform"), train("fedlwf")) < 1e-6


@pytest.mark.extended
def test_glfc_in_the_first_task_does_not_depend_on_what_is_stored():
    ours, other = (train("glfc", exemplars_per_class=k, replay_size=b)["params"] for k, b in ((1, 2), (3, 5)))
    assert difference(ours, other) < 1e-6


DRIFT = {"rounds_per_step": 10, "learning_rate": 0.3, "delta": 0.3}


@pytest.mark.slow
def test_feddrift_with_one_common_model_and_no_drift_is_fedavg():
    ours = train("feddrift", start="common", delta=1.0, rounds_per_step=1)
    assert difference(train("fedavg"), tree.take(ours, 0)) < 1e-6


@pytest.mark.extended
def test_separate_models_of_feddrift_become_their_mean():
    """Each client trains its own model, and no distance is too large; models that no client prefers stay."""
    round = compose("feddrift", norm="none", options=DRIFT | {"delta_merge": 1.0})
    state = run(round, rounds=DRIFT["rounds_per_step"])[0]
    after = run(round, rounds=1, change=lambda _: state)[0].server.published["groups"]
    assert state.server.published["groups"]["labels"].tolist() == [0, 1, 2, 3, 4]
    assert after["labels"].tolist() == [0, 0, 0, 0, 0] and int(after["uses"].sum()) == 10
    merged = np.asarray(after["weights"][0])
    assert 1 < np.sum(merged > 0) <= 5 and np.isclose(merged.sum(), 1)
    assert not np.any(np.asarray(after["uses"])[1:][merged[1:] > 0])


@pytest.mark.extended
def test_a_client_of_feddrift_whose_classes_change_leaves_alone_with_a_copy_of_its_model():
    round, data = compose("feddrift", norm="none", options=DRIFT | {"start": "common"}), federation().data
    state = run(round, rounds=3 * DRIFT["rounds_per_step"])[0]
    labels = np.array(data.examples.labels)
    own = data.train.index[3][: data.train.count[3]]
    labels[own] = (labels[own] + 1) % 3
    drifted = data._replace(examples=data.examples._replace(labels=labels))
    groups = run(round, rounds=1, data=drifted, change=lambda _: state)[0].server.published["groups"]
    assert groups["labels"].tolist() == [0, 0, 0, 1, 0] and groups["until"].tolist() == [0, 0, 0, 4, 0]
    assert np.array_equal(groups["weights"], np.eye(6)[[0, 0, 2, 3, 4, 5]])


def test_feddrift_refuses_fewer_models_than_clients_that_start_with_one():
    with pytest.raises(InputError, match="num_models: 5 clients start with a model each, and there are 3"):
        compose("feddrift", options={"num_models": 3}).init(make_key(0), federation().data)

"""Laws of methods for data that change with the round."""

import jax
import numpy as np
import pytest

from fedjax_het import tree
from fedjax_het.errors import InputError
from tests.harness import compose, difference, federation, is_equal, run, train


@pytest.mark.extended
def test_fedlwf_is_fedavg_in_the_first_task():
    ours = train("fedlwf", rounds_per_task=3)["params"]
    assert difference(train("fedavg", weighting="uniform")["params"], ours) < 1e-5


@pytest.mark.extended
def test_fedlwf_without_new_classes_learns_nothing_in_the_second_task():
    """All classes are old then, and an example has no other class to compete with."""
    assert is_equal(train("fedlwf", rounds=1, lam=0.0), train("fedlwf", rounds=2, rounds_per_task=1, lam=0.0))


DRIFT = {"rounds_per_step": 10, "learning_rate": 0.3, "delta": 0.3}


@pytest.mark.extended
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
        compose("feddrift", options={"num_models": 3}).init(jax.random.key(0), federation().data)

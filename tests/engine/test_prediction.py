"""Predictions of trained models agree with evaluations; histories as tables and plots."""

import sys
from dataclasses import replace

import numpy as np
import pytest

from fedjax_het import confusion_matrix, data, models, predict, simulate
from fedjax_het.client.local_updates import sgd
from fedjax_het.client.personalization import fine_tuned
from fedjax_het.engine import prediction
from fedjax_het.errors import InputError
from tests.harness import algorithm

pytestmark = pytest.mark.extended


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fedbn", "fedavg"])
def test_predictions_have_the_accuracy_of_the_evaluation(name, monkeypatch):
    federation = data.toy(num_clients=3, client_test_fraction=0.5, test_fraction=0.2)
    network = models.mlp(federation.num_classes, hidden=(8,), norm="batch")
    trained = algorithm(name)
    if name == "fedavg":
        trained = replace(trained, personalize=fine_tuned(sgd(0.5, batch_size=4)))
    history = simulate(trained, network, federation, rounds=2, seed=3, num_seeds=2)
    for run in (0, 1):
        options = {"run": run, "seed": 3}
        parts = {
            "test": predict(trained, network, federation, history.state, **options),
            "clients": predict(trained, network, federation, history.state, client=2, **options),
            "personal": predict(trained, network, federation, history.state, client=2, personal=True, **options),
        }
        for part, predicted in parts.items():
            expected = getattr(history.evaluation, part).accuracy[run, -1]
            expected = expected if part == "test" else expected[2]
            assert np.mean(predicted.classes == predicted.labels) == pytest.approx(expected)
            assert predicted.logits.shape == (len(predicted.labels), federation.num_classes)
            matrix = predicted.confusion_matrix(federation.num_classes)
            assert np.trace(matrix) / matrix.sum() == pytest.approx(expected)
            expected = confusion_matrix(predicted.labels, predicted.classes, federation.num_classes)
            np.testing.assert_array_equal(matrix, expected)
    compiled = []
    with monkeypatch.context() as patch:
        patch.setattr(prediction, "score_own_models", lambda *_, **__: compiled.append(1))
        predict(trained, network, federation, history.state, client=1, run=1, seed=3)
        predict(trained, network, federation, history.state, client=0, personal=True)
    assert not compiled
    for wrong, message in (({"client": 3}, "client"), ({"run": 2}, "run"), ({"personal": True}, "client")):
        with pytest.raises(InputError, match=message):
            predict(trained, network, federation, history.state, **wrong)


@pytest.fixture(scope="module")
def history():
    federation = data.toy(num_clients=3, client_test_fraction=0.5, test_fraction=0.2)
    network = models.mlp(federation.num_classes, hidden=())
    return simulate(algorithm("fedavg"), network, federation, rounds=3, evaluate_every=2, num_seeds=2)


def test_a_dataframe_has_a_row_per_run_and_evaluation(history):
    pandas = pytest.importorskip("pandas")
    table = history.to_dataframe()
    assert isinstance(table, pandas.DataFrame) and list(table["run"]) == [0, 0, 1, 1]
    assert list(table["round"]) == [2, 3, 2, 3] == 2 * history.rounds
    np.testing.assert_array_equal(table["test/accuracy"], history.evaluation.test.accuracy.ravel())
    np.testing.assert_array_equal(table["train/loss"], history.train_loss[:, [1, 2]].ravel())
    assert np.allclose(table["clients/accuracy_mean"], history.evaluation.clients.accuracy.mean(axis=-1).ravel())


def test_a_missing_package_is_named_with_its_installation(history, monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(InputError, match="pip install pandas"):
        history.to_dataframe()


def test_a_plot_has_a_line_of_means_over_runs_for_each_figure(history):
    scores, losses = history.plot()
    assert {"test/accuracy", "clients/accuracy_mean"} == {line.get_label() for line in scores.lines}
    assert {"train/loss", "test/loss", "clients/loss_mean"} == {line.get_label() for line in losses.lines}
    (axis,) = history.plot("test/accuracy")
    np.testing.assert_array_equal(axis.lines[0].get_xydata()[:, 0], history.rounds)
    np.testing.assert_allclose(axis.lines[0].get_ydata(), history.evaluation.test.accuracy.mean(axis=0))
    with pytest.raises(InputError, match="Did you mean 'test/accuracy'"):
        history.plot("test/acuracy")

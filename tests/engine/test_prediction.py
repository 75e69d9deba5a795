"""Predictions of trained models agree with what evaluations score."""

from dataclasses import replace

import numpy as np
import pytest

from fedjax_het import confusion_matrix, data, models, predict, simulate
from fedjax_het.client.local_updates import sgd
from fedjax_het.client.personalization import fine_tuned
from fedjax_het.errors import InputError
from tests.harness import algorithm

pytestmark = pytest.mark.extended


@pytest.mark.parametrize("name", ["fedbn", "fedavg"])
def test_predictions_have_the_accuracy_of_the_evaluation(name):
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
    for wrong, message in (({"client": 3}, "client"), ({"run": 2}, "run"), ({"personal": True}, "client")):
        with pytest.raises(InputError, match=message):
            predict(trained, network, federation, history.state, **wrong)

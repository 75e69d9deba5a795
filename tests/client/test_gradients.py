import jax
import numpy as np
import pytest

from fedjax_het._internal.whole_data import mean_gradient
from tests.client.test_local_updates import INPUTS, LABELS, PROBLEM, WEIGHTS, view

pytestmark = pytest.mark.extended


@pytest.mark.parametrize("batch_size", [3, 7, 50])
def test_the_full_gradient_is_the_mean_over_examples_for_any_batch_size(batch_size):
    rows = np.arange(11)
    ours = mean_gradient(PROBLEM, view(np.pad(rows, (0, 9)), 11), batch_size)["w"]
    scores = jax.nn.softmax(INPUTS[rows] @ WEIGHTS["w"])
    wanted = INPUTS[rows].T @ (scores - np.eye(3)[LABELS[rows]]) / 11
    np.testing.assert_allclose(ours, wanted, atol=1e-6)

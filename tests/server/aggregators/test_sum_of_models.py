import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_het.algorithm import Weighting
from fedjax_het.engine.parallel.update_stack import StackedUpdates
from fedjax_het.server.aggregators import mean, sum_of_models
from fedjax_het.types import Broadcast, ServerView, Upload

RNG = np.random.default_rng(0)
START, MODELS = RNG.normal(size=(4, 2)), RNG.normal(size=(3, 4, 2))


def combined(aggregator) -> np.ndarray:
    upload = Upload({}, {}, jnp.arange(1.0, 4.0), jnp.ones(3))
    received = Broadcast(jnp.zeros((), int), {"params": {"w": jnp.asarray(START)}}, {})
    updates = StackedUpdates({"params": {"w": jnp.asarray(MODELS - START)}})
    view = ServerView(received, upload, jnp.arange(3), jnp.ones(3, bool), 3, updates)
    aggregate, _ = aggregator.update(None, aggregator.init(received.shared, 3), view)
    return START + aggregate.update["params"]["w"]


@pytest.mark.parametrize("weighting", ["samples", "uniform"])
def test_with_weights_that_sum_to_one_it_is_the_mean(weighting):
    np.testing.assert_allclose(combined(sum_of_models(weighting)), combined(mean(weighting)), atol=1e-5)


def test_with_other_weights_the_model_shrinks():
    weights = np.array([0.1, 0.2, 0.3])
    weighting = Weighting(lambda shared, num_clients: (), lambda state, view: (jnp.asarray(weights), state))
    np.testing.assert_allclose(combined(sum_of_models(weighting)), np.tensordot(weights, MODELS, 1), atol=1e-6)

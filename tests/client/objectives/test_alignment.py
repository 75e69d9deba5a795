import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_het.client.measures._statistics import ClassStatistics
from fedjax_het.client.objectives import alignment
from fedjax_het.problem import ForwardPass
from fedjax_het.types import Batch, Broadcast, ClientView, Outputs

RNG = np.random.default_rng(0)
FEATURES, LABELS = RNG.normal(size=(6, 4)), np.array([0, 1, 2, 0, 1, 2])
GLOBAL, OWN = RNG.normal(size=(3, 4)), RNG.normal(size=(3, 4))


def term(lam=1.0, round=1, is_known=(True, True, True), mask=(1,) * 6, features=FEATURES):
    published = {"prototypes": {"means": jnp.asarray(GLOBAL), "is_known": jnp.array(is_known)}}
    answers = {"classes": ClassStatistics(jnp.ones(3), jnp.asarray(OWN), jnp.ones(()))}
    view = ClientView(Broadcast(jnp.asarray(round), {}, published), {}, answers, None, {}, {}, (), {}, None)
    batch = Batch(features, jnp.asarray(LABELS), jnp.asarray(mask, float))
    return alignment(lam)(ForwardPass(None, {}, {}, Outputs(jnp.asarray(features), None, {}), batch, view, None))


def test_alignment_is_the_mean_squared_distance_over_examples_and_features():
    np.testing.assert_allclose(term(2.0), 2 * np.mean((FEATURES - GLOBAL[LABELS]) ** 2), rtol=1e-6)


def test_a_class_without_a_global_prototype_uses_the_clients_own():
    targets = np.where(LABELS[:, None] == 1, OWN[LABELS], GLOBAL[LABELS])
    np.testing.assert_allclose(term(is_known=(True, False, True)), np.mean((FEATURES - targets) ** 2), rtol=1e-6)


@pytest.mark.extended
def test_alignment_is_zero_in_the_first_round():
    assert float(term(round=0)) == 0
    assert not np.any(jax.grad(lambda x: term(round=0, features=x))(jnp.asarray(FEATURES)))


def test_alignment_ignores_padding():
    wanted = np.mean((FEATURES - GLOBAL[LABELS])[:4] ** 2)
    np.testing.assert_allclose(term(mask=(1, 1, 1, 1, 0, 0)), wanted, rtol=1e-6)
    assert float(term(mask=(0,) * 6)) == 0

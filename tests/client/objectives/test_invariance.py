import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads

from fedjax_het import tree
from fedjax_het._internal.keys import make_key
from fedjax_het.client.objectives import cross_entropy, invariance
from fedjax_het.client.objectives._regularizers import gradient_of_head
from fedjax_het.models import mlp
from fedjax_het.problem import Problem
from fedjax_het.types import Batch, Broadcast, ClientView

pytestmark = pytest.mark.extended

MODEL = mlp(3, hidden=(5,))
INPUTS = jax.random.normal(make_key(0), (6, 4))
LABELS = jnp.array([0, 2, 1, 1, 0, 2])
PARAMS = MODEL.init(make_key(1), INPUTS)["params"]
PROBLEM = Problem(MODEL, (cross_entropy(),), lambda inputs: inputs)


def forward(params=PARAMS, mean=None, mass=1.0, mask=None, shared=PARAMS):
    published = {"mean_gradient": {"mean": mean, "mass": jnp.asarray(mass)}}
    view = ClientView(Broadcast(jnp.int32(0), {"params": shared}, published), {}, {}, None, {}, {}, (), {}, None)
    batch = Batch(INPUTS, LABELS, jnp.ones(6) if mask is None else mask)
    return PROBLEM.forward(params, {}, batch, view, make_key(0))


def full_gradient(params=PARAMS):
    return jax.grad(lambda p: cross_entropy()(forward(p)))(params)


@pytest.mark.slow
def test_gradient_of_head_is_the_heads_part_of_the_full_gradient():
    ours = gradient_of_head(forward())
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), ours, full_gradient()["classifier"])


def test_gradient_of_head_has_only_shared_leaves():
    shared = {**PARAMS, "classifier": {"kernel": PARAMS["classifier"]["kernel"]}}
    assert set(gradient_of_head(forward(shared=shared))) == {"kernel"}
    assert gradient_of_head(forward(shared={"dense_0": {}})) == {}


def test_the_penalty_is_zero_where_the_gradients_match():
    term, mean = invariance(0.7), full_gradient()["classifier"]
    value, gradient = jax.value_and_grad(lambda p: term(forward(p, mean)))(PARAMS)
    assert float(value) == pytest.approx(0, abs=1e-12)
    assert float(tree.norm(gradient)) == pytest.approx(0, abs=1e-6)
    assert float(term(forward(PARAMS, tree.scale(0.5, mean)))) > 1e-3


def test_the_penalty_is_the_squared_distance():
    mean = jax.tree.map(jnp.ones_like, PARAMS["classifier"])
    distance = tree.subtract(full_gradient()["classifier"], mean)
    expected = 0.3 * float(tree.squared_norm(distance))
    assert float(invariance(0.3)(forward(PARAMS, mean))) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(("mass", "divisor"), [(0.05, 0.05), (0.0, 1.0)])
def test_debiasing_divides_by_the_mass(mass, divisor):
    mean = full_gradient()["classifier"]
    expected = invariance(1.0)(forward(PARAMS, tree.scale(1 / divisor, mean)))
    ours = invariance(1.0, debias=True)(forward(PARAMS, mean, mass))
    np.testing.assert_allclose(ours, expected, rtol=1e-5, atol=1e-12)


@pytest.mark.slow
def test_the_gradient_of_the_penalty_matches_finite_differences():
    with jax.enable_x64(True):
        start = jax.tree.map(lambda x: jnp.asarray(x, jnp.float64) + 0.05, PARAMS)
        mean = jax.tree.map(jnp.ones_like, start["classifier"])
        check_grads(lambda params: invariance(1.0)(forward(params, mean)), (start,), order=1, modes=["rev"], rtol=1e-6)


def test_the_penalty_has_a_gradient_for_the_features():
    mean = tree.zeros_like(PARAMS["classifier"])
    gradient = jax.grad(lambda p: invariance(1.0)(forward(p, mean)))(PARAMS)
    assert np.any(gradient["dense_0"]["kernel"]) and np.any(gradient["classifier"]["kernel"])


def test_the_penalty_has_no_gradient_for_an_empty_batch():
    mean = jax.tree.map(jnp.ones_like, PARAMS["classifier"])
    gradient = jax.grad(lambda p: invariance(1.0)(forward(p, mean, mask=jnp.zeros(6))))(PARAMS)
    assert not any(np.any(leaf) for leaf in jax.tree.leaves(gradient))

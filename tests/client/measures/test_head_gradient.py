import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from fedjax_het import tree
from fedjax_het._internal.keys import make_key
from fedjax_het.client.measures import head_gradient
from fedjax_het.client.objectives import cross_entropy
from fedjax_het.errors import InputError
from fedjax_het.models import mlp
from fedjax_het.problem import Problem
from fedjax_het.types import Broadcast, ClientData, ClientView, Examples, Rows

MODEL = mlp(3, hidden=(5,))
INPUTS = jax.random.normal(make_key(0), (7, 4))
LABELS = jnp.array([0, 2, 1, 1, 0, 2, 1])
VARIABLES = MODEL.init(make_key(1), INPUTS)
PROBLEM = Problem(MODEL, (cross_entropy(),), lambda inputs: inputs)


def measure(per="batch", batch_size=3, count=7):
    rows = Rows(jnp.arange(9, dtype=jnp.int32) % 7, jnp.int32(count))
    data = ClientData(Examples(INPUTS, LABELS), rows, rows, rows)
    received = Broadcast(jnp.int32(0), VARIABLES, {})
    view = ClientView(received, {}, {}, data, VARIABLES, VARIABLES, (), {}, jnp.zeros(()))
    return jax.jit(lambda: head_gradient(batch_size, per)(PROBLEM, view))()


def expected_gradient(first, last):
    """The gradient of the mean loss of some examples by the head."""

    def loss(head):
        params = {**VARIABLES["params"], "classifier": head}
        hidden = jax.nn.relu(INPUTS @ params["dense_0"]["kernel"] + params["dense_0"]["bias"])
        logits = MODEL.classify(params, hidden)
        return optax.softmax_cross_entropy_with_integer_labels(logits, LABELS)[first:last].mean()

    return jax.grad(loss)(VARIABLES["params"]["classifier"])


def assert_close(ours, theirs):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6), ours, theirs)


@pytest.mark.slow
def test_per_batch_a_short_batch_counts_as_a_full_one():
    batches = [expected_gradient(0, 3), expected_gradient(3, 6), expected_gradient(6, 7)]
    assert_close(measure(), {"total": jax.tree.map(lambda *x: sum(x), *batches), "weight": 3.0})


@pytest.mark.extended
def test_per_sample_the_total_is_the_sum_over_examples():
    assert_close(measure("sample"), {"total": tree.scale(7, expected_gradient(0, 7)), "weight": 7.0})


@pytest.mark.extended
def test_per_client_the_total_is_the_mean_gradient_of_the_client():
    assert_close(measure("client"), {"total": expected_gradient(0, 7), "weight": 1.0})


@pytest.mark.extended
@pytest.mark.parametrize("per", ["sample", "client"])
def test_per_sample_and_per_client_the_batch_size_has_no_effect(per):
    assert_close(measure(per, batch_size=2), measure(per, batch_size=7))


@pytest.mark.parametrize("per", ["batch", "sample", "client"])
def test_a_client_without_examples_reports_zeros(per):
    assert not any(np.any(leaf) for leaf in jax.tree.leaves(measure(per, count=0)))


def test_an_unknown_unit_is_refused_with_the_nearest():
    with pytest.raises(InputError, match="Did you mean 'sample'"):
        head_gradient(4, "samples")

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_het.errors import InputError
from fedjax_het.models import mlp
from fedjax_het.types import Context

KEY = jax.random.key(0)


def test_an_mlp_without_hidden_layers_is_logistic_regression():
    model = mlp(3, hidden=())
    inputs = jax.random.normal(KEY, (4, 2, 5))
    variables = model.init(KEY, inputs)
    (features, _), _ = model.encode(variables, inputs, Context(jnp.ones(4), jnp.int32(0), KEY, True))
    np.testing.assert_array_equal(features, inputs.reshape(4, 10))
    head = variables["params"]["classifier"]
    expected = inputs.reshape(4, 10) @ head["kernel"] + head["bias"]
    np.testing.assert_allclose(model.classify(variables["params"], features), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.extended
def test_width_scales_the_hidden_layers():
    params = mlp(3, hidden=(100, 2), width=0.1).init(KEY, jnp.zeros((1, 4)))["params"]
    assert params["dense_0"]["kernel"].shape == (4, 10)
    assert params["dense_1"]["kernel"].shape == (10, 1)


@pytest.mark.extended
@pytest.mark.parametrize("kind", ["batch", "batch_stat", "group", "none"])
def test_padding_does_not_change_the_features_of_other_examples(kind):
    model = mlp(3, hidden=(8,), norm=kind)
    inputs = jax.random.normal(KEY, (6, 4))
    variables = model.init(KEY, inputs)
    mask = jnp.array([1.0, 1, 1, 1, 0, 0])
    (padded, _), padded_state = model.encode(variables, inputs, Context(mask, jnp.int32(0), KEY, True))
    alone = Context(jnp.ones(4), jnp.int32(0), KEY, True)
    (features, _), state = model.encode(variables, inputs[:4], alone)
    np.testing.assert_allclose(padded[:4], features, rtol=1e-5, atol=1e-6)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), padded_state, state)


def test_a_dropout_rate_of_one_is_refused():
    with pytest.raises(InputError, match=r"dropout: must be a number in \[0, 1\)"):
        mlp(3, dropout=1.0)

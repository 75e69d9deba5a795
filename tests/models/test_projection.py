import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_het.errors import InputError
from fedjax_het.models import cnn, mlp, projected
from fedjax_het.models._adaptations import with_feature_shape
from fedjax_het.types import Context, Model

KEY, INPUTS = jax.random.key(0), jax.random.normal(jax.random.key(1), (4, 6, 6, 1))
CONTEXT = Context(jnp.ones(4), jnp.int32(0), KEY, True)


@pytest.mark.extended
@pytest.mark.parametrize("base", [mlp(3, (8,), norm="batch"), cnn(3, (2,), (5,), kernel=3)])
def test_the_projection_adds_two_layers_behind_the_features(base):
    model = projected(7)(base)
    variables = model.init(KEY, INPUTS)
    (features, _), state = model.encode(variables, INPUTS, CONTEXT)
    assert features.shape == (4, 7) and model.classify(variables["params"], features).shape == (4, 3)
    assert set(state) == set(variables) - {"params"}
    (before, _), _ = base.encode(variables, INPUTS, CONTEXT)
    layers = variables["params"]["projection"]
    hidden = np.maximum(before @ layers["hidden"]["kernel"] + layers["hidden"]["bias"], 0)
    np.testing.assert_allclose(features, hidden @ layers["output"]["kernel"], atol=1e-5)


def test_the_model_keeps_its_initial_weights():
    base = mlp(3, (8,))
    before, after = base.init(KEY, INPUTS)["params"], projected(8)(base).init(KEY, INPUTS)["params"]
    np.testing.assert_array_equal(before["dense_0"]["kernel"], after["dense_0"]["kernel"])
    assert set(after) - set(before) == {"projection"}
    assert {"projection/hidden", "projection/output"} <= set(projected(8)(base).layers(INPUTS))


def test_invalid_widths_and_models_without_a_dense_head_are_refused():
    with pytest.raises(InputError, match="width: must be a whole number"):
        projected(0)
    headless = Model(lambda key, inputs: {"params": {}}, None, None, None)
    with pytest.raises(InputError, match="dense classifier"):
        projected(4)(headless).init(KEY, INPUTS)


def test_with_feature_shape_adds_a_shape_without_entries():
    base = mlp(3, (8,), norm="batch")
    model = with_feature_shape(base)
    variables = model.init(KEY, INPUTS)
    assert variables["outline"]["prototypes"].shape == (0, 3, 8)
    (ours, _), state = model.encode(variables, INPUTS, CONTEXT)
    rest = {name: leaves for name, leaves in variables.items() if name != "outline"}
    np.testing.assert_array_equal(ours, base.encode(rest, INPUTS, CONTEXT)[0][0])
    assert set(state) == {"batch_stats", "outline"}


def test_with_feature_shape_refuses_features_that_are_maps():
    maps = Model(lambda key, x: {"params": {}}, lambda v, x, context: ((x, {}), {}), lambda params, x: x, None)
    with pytest.raises(InputError, match="features have shape"):
        with_feature_shape(maps).init(KEY, INPUTS)

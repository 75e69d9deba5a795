import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from fedjax_het.errors import InputError
from fedjax_het.models import MODELS, from_flax, mlp
from fedjax_het.models._layers import Conv
from fedjax_het.models._norms import BatchNorm, norm
from fedjax_het.types import Context

KEY = jax.random.key(0)
OF_IMAGES = [name for name, factory in MODELS.items() if "norm" in inspect.signature(factory).parameters]


def context(num_examples, is_training=False, key=KEY):
    return Context(jnp.ones(num_examples), jnp.int32(0), key, is_training)


class Block(nn.Module):
    @nn.compact
    def __call__(self, x, mask, is_training):
        return norm("batch", name="norm")(Conv(4, name="conv")(x), mask, is_training)


class Nested(nn.Module):
    def setup(self):
        self.block_0 = Block()
        self.classifier = nn.Dense(3)

    def encode(self, x, mask, is_training):
        return self.block_0(x, mask, is_training).mean((1, 2))

    def classify(self, features):
        return self.classifier(features)


def test_layers_names_the_class_of_nested_modules():
    layers = from_flax(Nested()).layers(jnp.zeros((2, 5, 5, 1)))
    assert layers == {"block_0": Block, "block_0/conv": Conv, "block_0/norm": BatchNorm, "classifier": nn.Dense}


def test_layers_accepts_abstract_inputs():
    inputs = jax.ShapeDtypeStruct((2, 5, 5, 1), jnp.float32)
    assert from_flax(Nested()).layers(inputs)["block_0/norm"] is BatchNorm


@pytest.mark.extended
def test_only_training_changes_the_other_collections():
    model = from_flax(Nested())
    inputs = jax.random.normal(KEY, (4, 5, 5, 1))
    variables = model.init(KEY, inputs)
    _, evaluated = model.encode(variables, inputs, context(4))
    (features, extras), trained = model.encode(variables, inputs, context(4, is_training=True))
    assert extras == {} and features.shape == (4, 4)
    assert set(trained) == set(evaluated) == {"batch_stats"}
    jax.tree.map(np.testing.assert_array_equal, evaluated["batch_stats"], variables["batch_stats"])
    moved = jax.tree.map(lambda a, b: bool(jnp.any(a != b)), trained["batch_stats"], variables["batch_stats"])
    assert all(jax.tree.leaves(moved))


@pytest.mark.extended
def test_dropout_draws_from_the_contexts_key_in_training_only():
    model = mlp(3, hidden=(64,), dropout=0.5)
    inputs = jax.random.normal(KEY, (2, 6))
    variables = model.init(KEY, inputs)

    def features(is_training, seed):
        return model.encode(variables, inputs, context(2, is_training, jax.random.key(seed)))[0][0]

    np.testing.assert_array_equal(features(True, 1), features(True, 1))
    assert jnp.any(features(True, 1) != features(True, 2))
    np.testing.assert_array_equal(features(False, 1), features(False, 2))


@pytest.mark.extended
@pytest.mark.parametrize("name", OF_IMAGES)
def test_every_model_has_its_head_at_classifier(name):
    model = MODELS[name](7, width=0.1)
    inputs = jnp.zeros((2, 32, 32, 3))
    variables = jax.eval_shape(model.init, KEY, inputs)
    (features, _), state = jax.eval_shape(lambda v, x: model.encode(v, x, context(2)), variables, inputs)
    logits = jax.eval_shape(model.classify, variables["params"], features)
    assert logits.shape == (*features.shape[:-1], 7) and features.shape[0] == 2
    assert set(variables["params"]["classifier"]) == {"kernel", "bias"}
    assert variables["params"]["classifier"]["kernel"].shape == (features.shape[-1], 7)
    assert set(state) == set(variables) - {"params"}


@pytest.mark.parametrize("name", OF_IMAGES)
@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_classes": 1}, "num_classes: must be a whole number from 2 to "),
        ({"width": 0.0}, "width: must be a finite number above 0"),
        ({"norm": "bacth"}, "Did you mean 'batch'"),
    ],
)
def test_every_factory_refuses_invalid_settings(name, settings, message):
    with pytest.raises(InputError, match=message):
        MODELS[name](**{"num_classes": 3} | settings)


@pytest.mark.parametrize("name", ["mlp", "lenet", "cnn"])
def test_hidden_layers_without_units_are_refused(name):
    with pytest.raises(InputError, match=r"hidden: must be a list in which each is a whole number from 1"):
        MODELS[name](3, hidden=(4, 0))

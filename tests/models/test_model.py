"""Models of Flax modules and the small networks: layers, collections, padding, sizes, and what they refuse."""

import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from fedjax_het import tree
from fedjax_het._internal.keys import make_key
from fedjax_het.errors import InputError
from fedjax_het.models import MODELS, cnn, from_flax, lenet, mlp
from fedjax_het.models._layers import Conv
from fedjax_het.models._norms import BatchNorm, norm
from fedjax_het.types import Context

KEY = make_key(0)
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
    layers = from_flax(Nested()).layers(jax.ShapeDtypeStruct((2, 5, 5, 1), jnp.float32))
    assert layers == {"block_0": Block, "block_0/conv": Conv, "block_0/norm": BatchNorm, "classifier": nn.Dense}


@pytest.mark.extended
def test_only_training_changes_the_other_collections():
    model = from_flax(Nested())
    inputs = jax.random.normal(KEY, (4, 5, 5, 1))
    variables = jax.jit(model.init)(KEY, inputs)
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
        return model.encode(variables, inputs, context(2, is_training, make_key(seed)))[0][0]

    np.testing.assert_array_equal(features(True, 1), features(True, 1))
    assert jnp.any(features(True, 1) != features(True, 2))
    np.testing.assert_array_equal(features(False, 1), features(False, 2))


@pytest.mark.extended
@pytest.mark.parametrize("name", OF_IMAGES)
def test_every_model_has_its_head_at_classifier(name):
    model = MODELS[name](7, width=0.1)
    inputs = jnp.zeros((2, 32, 32, 1))
    variables = jax.eval_shape(model.init, KEY, inputs)
    (features, _), state = jax.eval_shape(lambda v, x: model.encode(v, x, context(2)), variables, inputs)
    logits = jax.eval_shape(model.classify, variables["params"], features)
    assert logits.shape == (*features.shape[:-1], 7) and features.shape[0] == 2
    assert set(variables["params"]["classifier"]) == {"kernel", "bias"}
    assert variables["params"]["classifier"]["kernel"].shape == (features.shape[-1], 7)
    assert set(state) == set(variables) - {"params"}


def test_an_mlp_without_hidden_layers_is_logistic_regression():
    model = mlp(3, hidden=())
    inputs = jax.random.normal(KEY, (4, 2, 5))
    variables = model.init(KEY, inputs)
    (features, _), _ = model.encode(variables, inputs, context(4, is_training=True))
    np.testing.assert_array_equal(features, inputs.reshape(4, 10))
    head = variables["params"]["classifier"]
    expected = inputs.reshape(4, 10) @ head["kernel"] + head["bias"]
    np.testing.assert_allclose(model.classify(variables["params"], features), expected, rtol=1e-5, atol=1e-6)


def test_width_scales_the_hidden_layers():
    params = jax.eval_shape(mlp(3, hidden=(100, 2), width=0.1).init, KEY, jnp.zeros((1, 4)))["params"]
    assert [params[f"dense_{i}"]["kernel"].shape for i in range(2)] == [(4, 10), (10, 1)]


@pytest.mark.extended
@pytest.mark.parametrize("kind", ["batch", "batch_stat", "group", "none"])
def test_padding_does_not_change_the_features_of_other_examples(kind):
    model = mlp(3, hidden=(8,), norm=kind)
    inputs = jax.random.normal(KEY, (6, 4))
    variables = model.init(KEY, inputs)
    mask = jnp.array([1.0, 1, 1, 1, 0, 0])
    (padded, _), padded_state = model.encode(variables, inputs, Context(mask, jnp.int32(0), KEY, True))
    (features, _), state = model.encode(variables, inputs[:4], context(4, is_training=True))
    np.testing.assert_allclose(padded[:4], features, rtol=1e-5, atol=1e-6)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), padded_state, state)


def num_params(model, *size):
    variables = jax.eval_shape(model.init, KEY, jax.ShapeDtypeStruct((1, *size), jnp.float32))
    return tree.num_entries(variables["params"])


def test_cnns_have_the_numbers_of_parameters_of_the_papers():
    assert num_params(cnn(10), 28, 28, 1) == 1_663_370 and num_params(lenet(10), 32, 32, 3) == 62_006


@pytest.mark.parametrize(("factory", "smallest"), [(lenet, 16), (cnn, 4)])
def test_the_error_for_small_images_names_the_smallest_size(factory, smallest):
    model = factory(3, width=0.1)
    with pytest.raises(InputError, match=f"at least {smallest}x{smallest}"):
        jax.eval_shape(model.init, KEY, jnp.zeros((1, smallest, smallest - 1, 1)))
    assert num_params(model, smallest, smallest, 1) > 0


@pytest.mark.parametrize("name", OF_IMAGES)
@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_classes": 0}, "num_classes: must be a whole number from 1 to "),
        ({"width": 0.0}, "width: must be a finite number above 0"),
        ({"norm": "bacth"}, "Did you mean 'batch'"),
    ],
)
def test_every_factory_refuses_invalid_settings(name, settings, message):
    with pytest.raises(InputError, match=message):
        MODELS[name](**{"num_classes": 3} | settings)


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("mlp", {"hidden": (4, 0)}, "hidden: must be a list in which each is a whole number from 1"),
        ("mlp", {"dropout": 1.0}, r"dropout: must be a number in \[0, 1\)"),
        ("lenet", {"conv": "im2co"}, "Did you mean 'im2col'"),
        ("cnn", {"conv": "shifts"}, "conv: no implementation 'shifts'"),
        ("lenet", {"channels": ()}, "channels: a CNN needs"),
        ("lenet", {"kernel": 0}, "kernel: must be a whole number from 1"),
        ("lenet", {"padding": "same"}, "padding: unknown option 'same'"),
        ("resnet18", {"stem": "smal"}, "stem: unknown option 'smal'. Did you mean 'small'"),
        ("resnet50", {"conv": "im2co"}, "Did you mean 'im2col'"),
        ("unet", {"conv": "fft"}, "conv: no implementation 'fft'"),
        ("unet", {"levels": 5}, "levels: must be a whole number from 1 to 4, not 5"),
        ("transformer", {"features": 10}, "features: 10 cannot be divided among 4 heads"),
        ("transformer", {"outputs": "lost"}, "outputs: .*last"),
        ("transformer", {"num_classes": 0}, "num_classes: must be a whole number from 1 to"),
        ("lstm", {"hidden": ()}, "hidden: an LSTM needs"),
        ("lstm", {"outputs": "lost"}, "outputs: .*last"),
        ("lstm", {"num_classes": 0}, "num_classes: must be a whole number from 1 to"),
    ],
)
def test_invalid_settings_are_refused(name, settings, message):
    with pytest.raises(InputError, match=message):
        MODELS[name](**{"num_classes": 7} | settings)


@pytest.mark.extended
@pytest.mark.parametrize(
    ("name", "inputs", "message"),
    [
        ("mlp", np.zeros((2, 5), np.int32), "an MLP takes numbers, and was given tokens"),
        ("cnn", np.zeros((2, 784)), r"a CNN takes images .*\(2, 784\)"),
        ("resnet18", np.zeros((2, 784)), r"a ResNet takes images .*\(2, 784\)"),
        ("densenet121", np.zeros((2, 16, 16, 3)), r"pooling: height 1 .* is below the window's 2"),
        ("unet", np.zeros((2, 32, 40, 3)), "images of 32x40: .* multiples of 16"),
        ("unet", np.zeros((2, 32, 32)), "a U-Net takes images"),
        ("lstm", np.zeros((2, 5)), r"an LSTM takes tokens \[batch, length\]"),
        ("transformer", np.zeros((2, 5, 1), np.int32), r"a transformer takes tokens \[batch, length\]"),
    ],
)
def test_inputs_of_another_kind_are_refused(name, inputs, message):
    with pytest.raises(InputError, match=message):
        jax.eval_shape(MODELS[name](3).init, KEY, inputs)

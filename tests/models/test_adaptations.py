"""Adapted models: a probabilistic representation, a projection head, and leaves that declare shapes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from fedjax_het import tree
from fedjax_het._internal.keys import make_key
from fedjax_het.errors import InputError
from fedjax_het.models import cnn, mlp, projected, train_only
from fedjax_het.models._adaptations import probabilistic, with_empty_parameter, with_feature_shape
from fedjax_het.models._simplex_frame import framed
from fedjax_het.sharing import group_leaves, share_all
from fedjax_het.types import Context, Model

KEY = make_key(3)
INPUTS = jax.random.normal(KEY, (6, 4))


def adapted(*arguments, **settings):
    model = probabilistic(*arguments, **settings)(mlp(3, hidden=(5,)))
    return model, model.init(KEY, INPUTS)


def encode(model, variables, *, is_training=False, key=KEY):
    (features, extras), _ = model.encode(variables, INPUTS, Context(jnp.ones(6), jnp.int32(0), key, is_training))
    return features, extras


@pytest.mark.extended
@pytest.mark.parametrize(
    ("adapt", "added", "layers"),
    [
        (probabilistic(), {"representation", "reference"}, {"representation"}),
        (projected(8), {"projection"}, {"projection/hidden", "projection/output"}),
    ],
)
def test_the_adapted_model_keeps_the_initial_weights_and_layers_of_the_model(adapt, added, layers):
    base = mlp(3, hidden=(5,))
    before, after = base.init(KEY, INPUTS)["params"], adapt(base).init(KEY, INPUTS)["params"]
    jax.tree.map(np.testing.assert_array_equal, after["dense_0"], before["dense_0"])
    assert set(after) - set(before) == added
    assert adapt(base).layers(INPUTS) == base.layers(INPUTS) | dict.fromkeys(layers, nn.Dense)


def test_a_representation_layer_and_a_reference_are_added():
    params = adapted()[1]["params"]
    assert jax.tree.map(jnp.shape, params["representation"]) == {"kernel": (5, 10), "bias": (10,)}
    assert jax.tree.map(jnp.shape, params["reference"]) == {"mean": (3, 5), "scale": (3, 5), "factor": ()}
    assert {leaf: float(values.min()) for leaf, values in params["reference"].items()} == {
        "mean": 0,
        "scale": 1,
        "factor": 1,
    }
    assert "factor" not in adapted(learn_scale=False)[1]["params"]["reference"]
    assert "reference" not in adapted(has_reference=False)[1]["params"]


def test_training_draws_one_sample_per_example():
    model, variables = adapted(draw=lambda key, shape, dtype: jnp.full(shape, 2.0, dtype))
    features, extras = encode(model, variables, is_training=True)
    np.testing.assert_allclose(features, extras["mean"] + 2 * extras["scale"], rtol=1e-6)
    assert features.shape == (6, 5)
    assert model.classify(variables["params"], features).shape == (6, 3)
    assert np.all(extras["scale"] > 0)


@pytest.mark.extended
def test_training_noise_depends_on_the_key_only():
    model, variables = adapted()
    first, again, other = (encode(model, variables, is_training=True, key=make_key(i))[0] for i in (0, 0, 1))
    np.testing.assert_array_equal(first, again)
    assert np.all(first != other)
    assert np.ptp(first - encode(model, variables)[1]["mean"], axis=0).min() > 0


@pytest.mark.slow
def test_evaluation_averages_the_probabilities_of_its_samples():
    model, variables = adapted(7)
    features, _ = encode(model, variables)
    assert features.shape == (6, 7, 5)
    logits = model.classify(variables["params"], features)
    separate = [jax.nn.softmax(model.classify(variables["params"], features[:, draw])) for draw in range(7)]
    np.testing.assert_allclose(jnp.exp(logits), np.mean(separate, axis=0), rtol=1e-5)
    np.testing.assert_allclose(jnp.exp(logits).sum(axis=-1), 1, rtol=1e-5)
    np.testing.assert_array_equal(features, encode(model, variables)[0])


def test_without_samples_evaluation_uses_the_mean():
    model, variables = adapted(0)
    features, extras = encode(model, variables)
    np.testing.assert_array_equal(features, extras["mean"])


@pytest.mark.extended
def test_evaluation_with_zero_scale_equals_that_of_the_mean():
    model, variables = adapted(4)
    bias = variables["params"]["representation"]["bias"].at[5:].set(-200.0)
    variables["params"]["representation"]["bias"] = bias
    features, extras = encode(model, variables)
    logits = model.classify(variables["params"], features)
    expected = jax.nn.log_softmax(model.classify(variables["params"], extras["mean"]))
    np.testing.assert_allclose(logits, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.extended
def test_another_number_of_features_replaces_the_head():
    model, variables = adapted(2, num_features=8)
    params = variables["params"]
    assert params["classifier"]["kernel"].shape == (8, 3)
    assert params["representation"]["kernel"].shape == (5, 16)
    assert params["reference"]["mean"].shape == (3, 8)
    assert model.classify(params, encode(model, variables)[0]).shape == (6, 3)


@pytest.mark.parametrize("adapt", [probabilistic(), with_feature_shape])
def test_models_with_maps_as_features_are_refused(adapt):
    maps = Model(
        init=lambda key, inputs: {"params": {"classifier": {"kernel": jnp.ones((4, 3))}}},
        encode=lambda variables, inputs, context: ((inputs, {}), {}),
        classify=lambda params, features: features @ params["classifier"]["kernel"],
        layers=lambda inputs: {},
    )
    with pytest.raises(InputError, match=r"shape \(5, 5, 4\) per example"):
        adapt(maps).init(KEY, jnp.zeros((2, 5, 5, 4)))


def test_a_head_of_several_layers_cannot_change_its_width():
    deep = Model(
        init=lambda key, inputs: {"params": {"classifier": {"0": {"kernel": jnp.ones((4, 3))}}}},
        encode=lambda variables, inputs, context: ((inputs, {}), {}),
        classify=lambda params, features: features @ params["classifier"]["0"]["kernel"],
        layers=lambda inputs: {},
    )
    assert probabilistic()(deep).init(KEY, INPUTS)["params"]["reference"]["mean"].shape == (3, 4)
    with pytest.raises(InputError, match="Leave num_features out"):
        probabilistic(num_features=6)(deep).init(KEY, INPUTS)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_samples": -1}, "num_samples.*not -1"),
        ({"num_samples": 1.5}, "whole number"),
        ({"num_features": 0}, "num_features.*not 0"),
    ],
)
def test_invalid_settings_are_refused(settings, message):
    with pytest.raises(InputError, match=message):
        probabilistic(**settings)


# ---- projections and shapes ------------------------------------------------------------------------------------------
IMAGES = jax.random.normal(make_key(1), (4, 6, 6, 1))
CONTEXT = Context(jnp.ones(4), jnp.int32(0), KEY, True)


@pytest.mark.extended
@pytest.mark.parametrize("base", [mlp(3, (8,), norm="batch"), cnn(3, (2,), (5,), kernel=3)])
def test_the_projection_adds_two_layers_behind_the_features(base):
    model = projected(7)(base)
    variables = jax.jit(model.init)(KEY, IMAGES)
    (features, _), state = model.encode(variables, IMAGES, CONTEXT)
    assert features.shape == (4, 7) and model.classify(variables["params"], features).shape == (4, 3)
    assert set(state) == set(variables) - {"params"}
    (before, _), _ = base.encode(variables, IMAGES, CONTEXT)
    layers = variables["params"]["projection"]
    hidden = np.maximum(before @ layers["hidden"]["kernel"] + layers["hidden"]["bias"], 0)
    np.testing.assert_allclose(features, hidden @ layers["output"]["kernel"], atol=1e-5)


def test_invalid_widths_of_projections_and_models_without_a_dense_head_are_refused():
    with pytest.raises(InputError, match="width: must be a whole number"):
        projected(0)
    headless = Model(lambda key, inputs: {"params": {}}, None, None, None)
    with pytest.raises(InputError, match="dense classifier"):
        projected(4)(headless).init(KEY, IMAGES)


def test_with_feature_shape_adds_a_shape_without_entries():
    base = mlp(3, (8,), norm="batch")
    model = with_feature_shape(base)
    variables = model.init(KEY, IMAGES)
    assert variables["outline"]["prototypes"].shape == (0, 3, 8)
    (ours, _), state = model.encode(variables, IMAGES, CONTEXT)
    rest = {name: leaves for name, leaves in variables.items() if name != "outline"}
    np.testing.assert_array_equal(ours, base.encode(rest, IMAGES, CONTEXT)[0][0])
    assert set(state) == {"batch_stats", "outline"}


@pytest.mark.parametrize("adapt", [probabilistic(), projected(8), framed(8), with_feature_shape, with_empty_parameter])
def test_leaves_that_an_algorithm_adds_are_trained_where_the_network_is_frozen(adapt):
    network = train_only("params/classifier/*")(mlp(3, hidden=(5,)))
    before, model = network.init(KEY, INPUTS), adapt(network)
    groups = group_leaves(model, share_all, model.init(KEY, INPUTS), INPUTS)
    assert set(tree.paths(groups.frozen)) == {"params/dense_0/kernel", "params/dense_0/bias"}
    assert set(tree.paths(groups.shared)) - set(tree.paths(before))

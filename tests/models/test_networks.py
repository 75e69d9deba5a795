"""ResNet, DenseNet and U-Net: their sizes, their layers' names and classes, and what they refuse."""

from fnmatch import fnmatchcase

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from jax import lax

from fedjax_het import sharing, tree
from fedjax_het._internal.keys import make_key
from fedjax_het.errors import InputError
from fedjax_het.models import MODELS, from_flax
from fedjax_het.models._amplitude import amplitude_normalised
from fedjax_het.models._densenet import DenseNet
from fedjax_het.models._efficientnet import DepthwiseConv
from fedjax_het.models._layers import Conv
from fedjax_het.models._norms import NORMS
from fedjax_het.server.weightings._parameter_guided import low_layer
from fedjax_het.types import Context

pytestmark = pytest.mark.extended

KEY = make_key(0)
NUM_PARAMS = {  # on images of three channels; ResNet and DenseNet as torchvision's of a thousand classes
    "resnet18": (1000, 11_689_512),
    "resnet50": (1000, 25_557_032),
    "densenet121": (1000, 7_978_856),
    "efficientnet_lite0": (1000, 4_652_008),
    "unet": (2, 7_757_186),
}
NUM_NORMS = {"resnet18": 20, "resnet50": 53, "densenet121": 121, "efficientnet_lite0": 49, "unet": 18}


def shapes(model, size=32, channels=3):
    return jax.eval_shape(model.init, KEY, jax.ShapeDtypeStruct((1, size, size, channels), jnp.float32))


def logits(model, variables, inputs):
    context = Context(jnp.ones(len(inputs)), jnp.int32(0), KEY, True)
    (features, _), state = model.encode(variables, inputs, context)
    return model.classify(variables["params"], features), state


@pytest.mark.parametrize("name", NUM_PARAMS)
def test_networks_have_as_many_parameters_as_the_originals(name):
    num_classes, num_params = NUM_PARAMS[name]
    assert tree.num_entries(shapes(MODELS[name](num_classes))["params"]) == num_params


@pytest.mark.parametrize(("stem", "position"), [("imagenet", 8), ("small", 32)])
def test_a_small_stem_keeps_the_image_size(stem, position):
    sizes = []

    def note(call, arguments, settings, context):
        out = call(*arguments, **settings)
        if isinstance(context.module, Conv) and context.module.path[0] == "stage_0_block_0":
            sizes.append(out.shape[1])
        return out

    with nn.intercept_methods(note):
        shapes(MODELS["resnet18"](3, width=0.1, stem=stem), size=32)
    assert set(sizes) == {position}


@pytest.mark.parametrize(
    ("name", "kind"), [*(("resnet18", kind) for kind in NORMS), *((name, "batch") for name in NUM_NORMS)]
)
def test_all_norms_selects_every_norm_of_a_network(name, kind):
    """Also those in shortcuts, which a rule on PyTorch's names misses."""
    model = MODELS[name](3, norm=kind, width=0.1)
    inputs = jax.ShapeDtypeStruct((1, 32, 32, 3), jnp.float32)
    layers, paths = model.layers(inputs), tree.paths(shapes(model, 32))
    by_path = {path for path in paths if fnmatchcase(path, "*/norm*")}
    num_leaves = {"batch": 4, "group": 2, "static": 2}.get(kind, 0)
    if not num_leaves:
        assert not by_path
        with pytest.raises(InputError, match=r"nothing would be personal.*are of class Conv, Dense\. "):
            sharing.personal_paths(sharing.all_norms, paths, layers)
        return
    by_class = sharing.personal_paths(sharing.all_norms, paths, layers)
    assert by_path == by_class
    assert len(by_class) == num_leaves * NUM_NORMS[name]
    assert all(path.startswith(("params/classifier/", "params/up_")) or "/conv" in path for path in {*paths} - by_class)


@pytest.mark.parametrize(
    ("name", "layer"),
    [
        ("resnet18", "stage_0_block_1/conv_1"),
        ("resnet50", "stage_0_block_2/conv_2"),
        ("densenet121", "stem/conv"),
        ("efficientnet_lite0", "stage_0_block_0/conv_project"),
        ("unet", "encoder_0/conv_0"),
    ],
)
def test_the_default_low_layer_of_fedrd_is_the_expected_convolution(name, layer):
    assert low_layer(shapes(MODELS[name](3, width=0.2))) == f"params/{layer}/kernel"


def test_a_padded_densenet_has_larger_maps_after_its_first_block():
    """Two zeros on each side of 8 x 8 maps: 12 x 12, and 6 x 6 behind the transition."""

    def output(model):
        return jax.jit(lambda: logits(model, model.init(KEY, inputs), inputs)[0])()

    inputs = jax.random.normal(KEY, (2, 32, 32, 3))
    thin = {edge: DenseNet(3, (1, 1), (4, 2, 4), edge, "imagenet", "batch_stat", "auto") for edge in (0, 2)}
    seen = {}

    def note(call, arguments, settings, context):
        out = call(*arguments, **settings)
        if context.module.path == ("transition_0",):
            seen[context.module.parent.edge] = out.shape[1:3]
        return out

    with nn.intercept_methods(note):
        outputs = {edge: output(from_flax(network)) for edge, network in thin.items()}
    assert seen == {0: (4, 4), 2: (6, 6)}
    assert np.all(np.abs(outputs[0] - outputs[2]) > 1e-4)


def test_harmofls_networks_accept_amplitude_normalisation():
    model = amplitude_normalised()(MODELS["unet"](2, width=0.1))
    inputs = jax.ShapeDtypeStruct((2, 32, 32, 3), jnp.float32)
    variables = jax.eval_shape(model.init, KEY, inputs)
    assert set(variables) == {"params", "amplitude"} and variables["amplitude"]["average"].shape == (32, 32, 3)
    output, state = jax.eval_shape(lambda v, x: logits(model, v, x), variables, inputs)
    assert output.shape[-1] == 2 and set(state) == {"amplitude"}


@pytest.mark.parametrize(("size", "strides"), [(3, 1), (3, 2), (5, 2)])
def test_a_depthwise_convolution_and_its_gradients_are_those_of_xla(size, strides):
    x, kernel = jax.random.normal(KEY, (2, 7, 8, 5)), jax.random.normal(KEY, (size, size, 1, 5))

    def run_xla(kernel, x):
        axes = ("NHWC", "HWIO", "NHWC")
        return lax.conv_general_dilated(x, kernel, (strides,) * 2, "SAME", None, None, axes, 5)

    def run(kernel, x):
        return DepthwiseConv(size, strides).apply({"params": {"kernel": kernel}}, x)

    chex.assert_trees_all_close(run(kernel, x), run_xla(kernel, x), rtol=1e-5, atol=1e-5)
    ours, theirs = (
        jax.grad(lambda *arguments, f=f: jnp.sum(f(*arguments) ** 2), (0, 1))(kernel, x) for f in (run, run_xla)
    )
    chex.assert_trees_all_close(ours, theirs, rtol=1e-5, atol=1e-4)


@pytest.mark.slow
def test_a_unet_of_fewer_levels_is_the_outer_part_with_a_bottleneck_of_the_next_width():
    model = MODELS["unet"](2, levels=2, width=1 / 16)
    params = jax.eval_shape(model.init, KEY, jnp.zeros((2, 8, 12, 1)))["params"]
    levels = {f"{part}_{i}" for part in ("encoder", "up", "decoder") for i in range(2)}
    assert set(params) == levels | {"bottleneck", "classifier"}
    assert params["bottleneck"]["conv_0"]["kernel"].shape == (3, 3, 4, 8)

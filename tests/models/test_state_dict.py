"""Conversion to PyTorch's names and back."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_het import tree
from fedjax_het.errors import InputError
from fedjax_het.models import MODELS, TORCH_NAMES
from fedjax_het.models._pretrained import from_torch, to_torch

KEY = jax.random.key(0)
INPUTS = jnp.zeros((1, 32, 32, 3))


@functools.cache
def shapes(name, num_classes, **settings):
    return jax.eval_shape(MODELS[name](num_classes, width=0.05, **settings).init, KEY, INPUTS)


def variables(name="resnet18", num_classes=3, seed=0, **settings):
    """Random ones, statistics included."""
    random = np.random.default_rng(seed)
    return jax.tree.map(
        lambda leaf: jnp.asarray(random.normal(size=leaf.shape), jnp.float32), shapes(name, num_classes, **settings)
    )


def state_dict(name="resnet18"):
    return to_torch(variables(name, seed=1), TORCH_NAMES[name])


@pytest.mark.extended
@pytest.mark.parametrize(
    ("name", "norm"), [("resnet18", "batch_stat"), ("resnet18", "group"), *((name, "batch") for name in TORCH_NAMES)]
)
def test_conversion_to_pytorch_and_back_is_the_identity(name, norm):
    given = variables(name, norm=norm)
    state = to_torch(given, TORCH_NAMES[name])
    back = from_torch(state, variables(name, seed=1, norm=norm), TORCH_NAMES[name])
    jax.tree.map(np.testing.assert_array_equal, back, given)
    counters = [key for key in state if key.endswith("num_batches_tracked")]
    assert len(state) - len(counters) == len(tree.paths(given))
    assert bool(counters) == (norm == "batch")


@pytest.mark.extended
def test_kernels_have_pytorchs_axis_order():
    given = variables("unet", 5, norm="none")
    state = to_torch(given, TORCH_NAMES["unet"])
    kernel = given["params"]["encoder_1"]["conv_0"]["kernel"]
    up, head = given["params"]["up_2"]["kernel"], given["params"]["classifier"]["kernel"]
    np.testing.assert_array_equal(state["encoder2.enc2_conv1.weight"][2, 1], kernel[:, :, 1, 2])  # [out, in, ...]
    np.testing.assert_array_equal(state["upconv3.weight"][7, 3], up[:, :, 3, 7])  # [in, out, ...]
    assert state["conv.weight"].shape == (5, 2, 1, 1)
    np.testing.assert_array_equal(state["conv.weight"][..., 0, 0], head.T)
    assert all(value.flags.c_contiguous for value in state.values())


@pytest.mark.extended
@pytest.mark.parametrize("name", ["resnet18", "unet"])
def test_a_head_for_another_number_of_classes_is_not_loaded(name):
    own, given = variables(name, num_classes=4), variables(name, num_classes=9, seed=1)
    taken = from_torch(to_torch(given, TORCH_NAMES[name]), own, TORCH_NAMES[name])
    given["params"]["classifier"] = own["params"]["classifier"]
    jax.tree.map(np.testing.assert_array_equal, taken, given)


def test_leaves_without_a_pytorch_name_are_kept_and_not_exported():
    own = variables()
    own["amplitude"] = {"average": jnp.ones((4, 4, 3))}
    own["params"]["projection"] = {"hidden": {"kernel": jnp.ones((2, 2))}}
    taken = from_torch(state_dict(), own, TORCH_NAMES["resnet18"])
    assert taken["amplitude"]["average"] is own["amplitude"]["average"]
    assert set(to_torch(own, TORCH_NAMES["resnet18"])) == set(state_dict())


def test_values_are_converted_to_the_dtype_of_the_leaf():
    state = {key: value.astype(np.float64) for key, value in state_dict().items()}
    assert {leaf.dtype for leaf in jax.tree.leaves(from_torch(state, variables(), TORCH_NAMES["resnet18"]))} == {
        jnp.dtype("float32")
    }


def test_the_error_names_every_mismatch():
    state = state_dict()
    del state["layer1.0.conv1.weight"], state["bn1.running_var"]
    state["layer9.weight"] = np.zeros(2)
    state["layer4.1.bn2.bias"] = np.zeros(7)
    with pytest.raises(InputError) as refused:
        from_torch(state, variables(), TORCH_NAMES["resnet18"])
    faults = str(refused.value).splitlines()[1:]
    assert [fault.strip() for fault in faults] == [
        "missing: bn1.running_var [3]",
        "missing: layer1.0.conv1.weight [3, 3, 3, 3]",
        "surplus: layer9.weight [2]",
        "of another shape: layer4.1.bn2.bias is [7], and [26] here",
    ]


@pytest.mark.parametrize(
    ("settings", "fault"),
    [
        ({"norm": "group"}, r"surplus: layer1.0.bn1.running_mean \[3\]\n.*\n.*\n  and 37 more"),
        ({"norm": "none"}, r"surplus: layer1.0.bn1.running_mean \[3\]\n.*\n.*\n  and 77 more"),
        ({"stem": "small"}, r"of another shape: conv1.weight is \[3, 3, 7, 7\], and \[3, 3, 3, 3\] here"),
    ],
)
def test_weights_of_another_network_are_refused(settings, fault):
    with pytest.raises(InputError, match=fault):
        from_torch(state_dict(), variables(**settings), TORCH_NAMES["resnet18"])


def test_weights_with_another_number_of_channels_are_refused():
    grey = jax.eval_shape(MODELS["resnet18"](3, width=0.05).init, KEY, INPUTS[..., :1])
    with pytest.raises(InputError, match=r"conv1.weight is \[3, 3, 7, 7\], and \[3, 1, 7, 7\] here"):
        from_torch(state_dict(), grey, TORCH_NAMES["resnet18"])


@pytest.mark.extended
def test_names_of_torchvisions_old_densenets_are_read():
    state = state_dict("densenet121")
    old = {
        key.replace("norm1.", "norm.1.").replace("conv2.", "conv.2.") if "denselayer" in key else key: value
        for key, value in state.items()
    }
    assert set(old) != set(state)
    taken = (from_torch(each, variables("densenet121"), TORCH_NAMES["densenet121"]) for each in (old, state))
    jax.tree.map(np.testing.assert_array_equal, *taken)

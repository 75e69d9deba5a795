"""Weights from files: read, refused, loaded into a model, written."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy

from fedjax_het.errors import InputError
from fedjax_het.models import MODELS, TORCH_NAMES
from fedjax_het.models._pretrained import read_state_dict, save_state_dict

KEY, NAMES = jax.random.key(0), TORCH_NAMES["resnet18"]
INPUTS = jnp.zeros((1, 32, 32, 3))


def thin(num_classes=3, **settings):
    return MODELS["resnet18"](num_classes, width=0.05, **settings)


@pytest.fixture(scope="module")
def trained():
    return jax.jit(thin().init)(jax.random.key(1), INPUTS)


@pytest.mark.extended
@pytest.mark.parametrize("ending", ["safetensors", "npz"])
def test_a_pretrained_model_is_initialized_with_the_weights_of_the_file(tmp_path, trained, ending):
    path = tmp_path / f"weights.{ending}"
    save_state_dict(path, trained, NAMES)
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]
    begun = jax.jit(thin(pretrained=str(path)).init)(KEY, INPUTS)
    jax.tree.map(np.testing.assert_array_equal, begun, trained)


@pytest.mark.extended
def test_a_head_of_other_classes_is_initialized_at_random(tmp_path, trained):
    save_state_dict(tmp_path / "weights.npz", trained, NAMES)
    begun = jax.jit(thin(7, pretrained=str(tmp_path / "weights.npz")).init)(KEY, INPUTS)
    own = jax.jit(thin(7).init)(KEY, INPUTS)
    jax.tree.map(np.testing.assert_array_equal, begun["params"]["classifier"], own["params"]["classifier"])
    np.testing.assert_array_equal(
        begun["params"]["stem"]["conv"]["kernel"], trained["params"]["stem"]["conv"]["kernel"]
    )


def test_weights_that_do_not_fit_are_refused_at_initialization(tmp_path, trained):
    save_state_dict(tmp_path / "weights.npz", trained, NAMES)
    model = thin(pretrained=str(tmp_path / "weights.npz"), norm="group")
    with pytest.raises(InputError, match=r"(?s)pretrained: .*\n  surplus: bn1.running_mean \[3\]"):
        jax.eval_shape(model.init, KEY, INPUTS)


@pytest.mark.parametrize("ending", ["pth", "pt", "bin"])
def test_the_error_for_a_pickle_says_how_to_convert_it(ending):
    with pytest.raises(InputError, match=rf"torch.load\('weights.{ending}'.*'weights.safetensors'"):
        thin(pretrained=f"weights.{ending}")


def test_unreadable_files_are_named_in_the_error(tmp_path):
    with pytest.raises(InputError, match=r"no file '.*missing\.npz'"):
        read_state_dict(tmp_path / "missing.npz")
    with pytest.raises(InputError, match=r"ends with '\.h5'\. Known: \.safetensors, \.npz"):
        read_state_dict(tmp_path / "weights.h5")
    for ending in ("safetensors", "npz"):
        path = tmp_path / f"torn.{ending}"
        path.write_bytes(b"PK\x03\x04" + bytes(20))
        with pytest.raises(InputError, match=rf"torn.{ending}' is no .{ending} file"):
            read_state_dict(path)


def test_weights_in_half_precision_are_converted_to_float32(tmp_path, trained):
    save_state_dict(tmp_path / "weights.safetensors", trained, NAMES)
    state = {
        key: np.asarray(value, np.float16) for key, value in read_state_dict(tmp_path / "weights.safetensors").items()
    }
    safetensors.numpy.save_file(state, tmp_path / "half.safetensors")
    begun = jax.jit(thin(pretrained=str(tmp_path / "half.safetensors")).init)(KEY, INPUTS)
    kernels = [variables["params"]["stem"]["conv"]["kernel"] for variables in (begun, trained)]
    assert kernels[0].dtype == jnp.float32
    np.testing.assert_allclose(*kernels, rtol=1e-3, atol=1e-3)


def test_a_failed_write_leaves_the_old_file(tmp_path, trained, monkeypatch):
    path = tmp_path / "weights.npz"
    path.write_bytes(b"before")
    monkeypatch.setattr(np, "savez", lambda path, **state: path.write_bytes(b"half") and 1 / 0)
    with pytest.raises(ZeroDivisionError):
        save_state_dict(path, trained, NAMES)
    assert path.read_bytes() == b"before"
    with pytest.raises(InputError, match=r"ends with '\.pth'"):
        save_state_dict(tmp_path / "weights.pth", trained, NAMES)

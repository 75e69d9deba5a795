"""Weights from files: read, refused, loaded into a model, written."""

import shlex
import shutil
import subprocess
import sys
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy

from fedjax_het.errors import InputError
from fedjax_het.models import MODELS, TORCH_NAMES
from fedjax_het.models._pretrained import from_torch, read_state_dict, save_state_dict, to_torch
from tests.shared import shared_path

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


@pytest.mark.extended
def test_weights_that_do_not_fit_are_refused_at_initialization(tmp_path, trained):
    save_state_dict(tmp_path / "weights.npz", trained, NAMES)
    model = thin(pretrained=str(tmp_path / "weights.npz"), norm="group")
    with pytest.raises(InputError, match=r"(?s)pretrained: .*\n  surplus: [\w.]+running_mean \[3\]"):
        jax.eval_shape(model.init, KEY, INPUTS)


@pytest.mark.extended
def test_an_error_for_weights_that_do_not_fit_names_few_keys(tmp_path, trained):
    state = {f"other{number}.weight": np.zeros(3) for number in range(200)}
    with pytest.raises(InputError, match=r"\n  and \d+ more$") as raised:
        from_torch(state, trained, NAMES)
    lines = str(raised.value).splitlines()
    assert len(lines) == 8 and "  surplus: other0.weight [3]" in lines


@pytest.mark.extended
@pytest.mark.parametrize("prefix", ["module.", "_orig_mod.", "module.model."])
def test_prefixes_of_wrappers_are_removed(trained, prefix):
    state = {prefix + key: value for key, value in to_torch(trained, NAMES).items()}
    jax.tree.map(np.testing.assert_array_equal, from_torch(state, trained, NAMES), trained)


def test_weights_of_a_data_parallel_model_fit():
    path = shared_path("bugs/cases/16/dp.safetensors")
    model = MODELS["resnet18"](10, width=0.125, pretrained=str(path))
    begun = jax.eval_shape(model.init, KEY, INPUTS)
    assert begun["params"]["classifier"]["kernel"].shape == (64, 10)


def test_a_prefix_that_some_keys_lack_is_refused(trained):
    state = {key if key.startswith("fc") else f"module.{key}": x for key, x in to_torch(trained, NAMES).items()}
    with pytest.raises(InputError, match=r"surplus: module\."):
        from_torch(state, trained, NAMES)


def conversion_of(path):
    with pytest.raises(InputError, match="is a pickle") as raised:
        read_state_dict(path)
    return str(raised.value).partition("use the new file: ")[2]


@pytest.mark.parametrize("ending", ["pth", "pt", "bin", "ckpt", "pth.tar"])
def test_the_error_for_a_pickle_says_how_to_convert_it(ending):
    program, option, code, *paths = shlex.split(conversion_of(f"v1.0/it's a model.{ending}"))
    assert (program, option) == ("python", "-c")
    assert paths == [f"v1.0/it's a model.{ending}", "v1.0/it's a model.safetensors"]
    compile(code, "command", "exec")


class Tensor:
    """A tensor as far as the conversion needs it."""

    def __init__(self, value):
        self.value = value

    def detach(self):
        return self

    clone = detach

    def contiguous(self):
        return Tensor(np.ascontiguousarray(self.value))


@pytest.mark.parametrize("wrapper", [None, "state_dict", "model_state_dict", "model"])
def test_the_conversion_keeps_the_tensors_of_a_training_script_alone(monkeypatch, tmp_path, wrapper):
    """The code of the command, with a stand-in for PyTorch."""
    weights, saved = {"conv.weight": Tensor(np.ones((2, 3)).T), "epoch": 3}, {}
    content = weights if wrapper is None else {"epoch": 3, wrapper: weights, "optimizer": {"state": {}}}
    torch = SimpleNamespace(Tensor=Tensor, load=lambda path, **options: content)
    writer = SimpleNamespace(save_file=lambda state, path: saved.update({path: state}))
    for name, module in {"torch": torch, "safetensors.torch": writer}.items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(safetensors, "torch", writer, raising=False)
    _, _, code, *paths = shlex.split(conversion_of("model.pth.tar"))
    monkeypatch.setattr(sys, "argv", ["-c", *paths])
    exec(code, {})
    ((key, value),) = saved["model.safetensors"].items()
    assert key == "conv.weight" and value.value.flags.c_contiguous


@pytest.mark.parametrize("name", ["wrapped.pth", "noncontig.pth"])
def test_the_conversion_of_a_checkpoint_gives_weights_that_fit(tmp_path, name):
    pytest.importorskip("torch")
    old = tmp_path / name
    shutil.copy(shared_path(f"bugs/cases/16/{name}"), old)
    subprocess.run(conversion_of(old), shell=True, check=True)
    model = MODELS["resnet18"](10, width=0.125, pretrained=str(old.with_suffix(".safetensors")))
    jax.eval_shape(model.init, KEY, INPUTS)


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

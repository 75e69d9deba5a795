"""Weights from files: PyTorch's names and axes, and files that are read, refused, loaded into a model and written."""

import functools
import json
import shlex
import shutil
import subprocess
import sys
from types import SimpleNamespace

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.flax
import safetensors.numpy

from fedjax_het import tree
from fedjax_het._internal.keys import make_key
from fedjax_het.errors import InputError
from fedjax_het.models import MODELS, TORCH_NAMES, save_state_dict
from fedjax_het.models._pretrained import Naming, from_torch, to_torch
from fedjax_het.models._weight_files import complete_sizes, read_state_dict
from tests.shared import shared_path

KEY, NAMES = make_key(0), TORCH_NAMES["resnet18"]
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
    ("name", "norm"),
    [("resnet18", "group"), *((name, "batch") for name in ("resnet18", "resnet50", "densenet121", "unet"))],
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
    ("channels", "settings", "fault"),
    [
        (3, {"norm": "group"}, r"surplus: layer1.0.bn1.running_mean \[3\]\n.*\n.*\n  and 37 more"),
        (3, {"norm": "none"}, r"surplus: layer1.0.bn1.running_mean \[3\]\n.*\n.*\n  and 77 more"),
        (3, {"stem": "small"}, r"of another shape: conv1.weight is \[3, 3, 7, 7\], and \[3, 3, 3, 3\] here"),
        (1, {}, r"of another shape: conv1.weight is \[3, 3, 7, 7\], and \[3, 1, 7, 7\] here"),
    ],
)
def test_weights_of_another_network_are_refused_at_initialization(tmp_path, channels, settings, fault):
    save_state_dict(tmp_path / "weights.npz", variables(), NAMES)
    model = MODELS["resnet18"](3, width=0.05, pretrained=str(tmp_path / "weights.npz"), **settings)
    with pytest.raises(InputError, match=fault):
        jax.eval_shape(model.init, KEY, INPUTS[..., :channels])


@pytest.mark.slow
def test_names_of_torchvisions_old_densenets_are_read():
    state = state_dict("densenet121")
    old = {
        key.replace("norm1.", "norm.1.").replace("conv2.", "conv.2.") if "denselayer" in key else key: value
        for key, value in state.items()
    }
    assert set(old) != set(state)
    taken = (from_torch(tensors, variables("densenet121"), TORCH_NAMES["densenet121"]) for tensors in (old, state))
    jax.tree.map(np.testing.assert_array_equal, *taken)


# ---- files -----------------------------------------------------------------------------------------------------------
@pytest.fixture
def trained():
    return variables(seed=1)


@pytest.mark.extended
@pytest.mark.parametrize("ending", ["safetensors", "npz"])
def test_a_pretrained_model_is_initialized_with_the_weights_of_the_file(tmp_path, trained, ending):
    path = tmp_path / f"weights.{ending}"
    save_state_dict(path, trained, NAMES)
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]
    begun = jax.jit(MODELS["resnet18"](3, width=0.05, pretrained=str(path)).init)(KEY, INPUTS)
    jax.tree.map(np.testing.assert_array_equal, begun, trained)


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
        with pytest.raises(InputError, match=rf"torn.{ending}' is not a .{ending} file"):
            read_state_dict(path)


def test_weights_in_half_precision_are_converted_to_float32(tmp_path, trained):
    state = {key: np.asarray(value, np.float16) for key, value in to_torch(trained, NAMES).items()}
    safetensors.numpy.save_file(state, tmp_path / "half.safetensors")
    begun = from_torch(read_state_dict(tmp_path / "half.safetensors"), variables(), NAMES)
    assert {leaf.dtype for leaf in jax.tree.leaves(begun)} == {jnp.dtype("float32")}
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-3), begun, trained)


def test_a_failed_write_leaves_the_old_file(tmp_path, trained, monkeypatch):
    path = tmp_path / "weights.npz"
    path.write_bytes(b"before")
    monkeypatch.setattr(np, "savez", lambda path, **state: path.write_bytes(b"half") and 1 / 0)
    with pytest.raises(ZeroDivisionError):
        save_state_dict(path, trained, NAMES)
    assert path.read_bytes() == b"before"
    with pytest.raises(InputError, match=r"ends with '\.pth'"):
        save_state_dict(tmp_path / "weights.pth", trained, NAMES)


# ---- published directories -------------------------------------------------------------------------------------------
def write_shards(folder, state, num_shards=2):
    keys = sorted(state)
    names = {key: f"model-{index % num_shards + 1:05}-of-{num_shards:05}.safetensors" for index, key in enumerate(keys)}
    for name in set(names.values()):
        safetensors.numpy.save_file({key: state[key] for key in keys if names[key] == name}, folder / name)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": names}))


@pytest.mark.parametrize("inside", ["", "model.safetensors.index.json"])
def test_weights_in_several_files_are_read_by_their_index(tmp_path, inside):
    state = {f"layer.{index}": np.full(2, index) for index in range(5)}
    write_shards(tmp_path, state)
    chex.assert_trees_all_equal(read_state_dict(tmp_path / inside), state)


def test_a_single_file_of_a_directory_is_read(tmp_path):
    safetensors.numpy.save_file({"a": np.ones(2)}, tmp_path / "model.safetensors")
    assert set(read_state_dict(tmp_path)) == {"a"}


@pytest.mark.parametrize(
    ("index", "message"),
    [
        ({"weight_map": {"a": "first.safetensors", "b": "first.safetensors"}}, r"first.safetensors' lacks b \(1 keys"),
        ({"weight_map": {}}, None),
        ({"weight_map": {"a": "missing.safetensors"}}, r"no file '.*missing.safetensors'"),
        ({"weight_map": {"a": "../first.safetensors"}}, "no weight_map of names of files beside it"),
        ({"weights": {}}, "no weight_map"),
        ([], "holds no JSON object"),
        (None, "is not a JSON file"),
    ],
)
def test_an_index_that_disagrees_with_its_files_is_refused(tmp_path, index, message):
    safetensors.numpy.save_file({"a": np.ones(2)}, tmp_path / "first.safetensors")
    path = tmp_path / "model.safetensors.index.json"
    path.write_text("{" if index is None else json.dumps(index))
    if message is None:
        assert read_state_dict(path) == {}
        return
    with pytest.raises(InputError, match=message):
        read_state_dict(path)


def test_a_directory_without_weights_or_with_a_pickle_alone_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"has neither model\.safetensors nor model\.safetensors\.index\.json"):
        read_state_dict(tmp_path)
    (tmp_path / "pytorch_model.bin").write_bytes(b"")
    with pytest.raises(InputError, match=r"pytorch_model\.bin' is a pickle"):
        read_state_dict(tmp_path)


def test_bfloat16_weights_are_converted_to_float32(tmp_path, trained):
    state = {key: jnp.asarray(value, jnp.bfloat16) for key, value in to_torch(trained, NAMES).items()}
    safetensors.flax.save_file(state, tmp_path / "half.safetensors")
    begun = from_torch(read_state_dict(tmp_path / "half.safetensors"), variables(), NAMES)
    jax.tree.map(lambda a, b: np.testing.assert_array_equal(a, b.astype(jnp.bfloat16)), begun, trained)


def test_sizes_follow_from_a_configuration_which_arguments_may_not_contradict(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"n_embd": 24, "n_inner": None}))
    complete = functools.partial(
        complete_sizes, keys={"features": "n_embd", "hidden": "n_inner"}, usual={"features": 768, "hidden": 1}
    )
    assert complete(str(tmp_path), given={"features": None}) == {"features": 24, "hidden": 1}
    assert complete(None, given={"features": 8}) == {"features": 8, "hidden": 1}
    with pytest.raises(InputError, match=r"features: 8 contradicts '.*config.json', where n_embd is 24. Omit features"):
        complete(str(tmp_path), given={"features": 8})


# ---- namings ---------------------------------------------------------------------------------------------------------
TEXT = Naming(
    {
        "embedding": "text.words",
        "positions": "text.positions",
        "block_#/dense": "text.h.<1>.fc",
        "block_#/query": "text.h.<1>.q",
        "pooler": "text.pooler",
        "classifier": "score",
    },
    untransposed=("block_#/dense",),
    prefix="text.",
    optional=("pooler",),
    ignored=r"(text\.)?h\.\d+\.mask",
)


def text_variables(num_classes=3):
    random = np.random.default_rng(num_classes)
    params = {
        "embedding": {"embedding": random.normal(size=(7, 4))},
        "positions": random.normal(size=(1, 5, 4)),
        "block_0": {"dense": {"kernel": random.normal(size=(4, 6))}, "query": {"kernel": random.normal(size=(4, 2))}},
        "pooler": {"kernel": random.normal(size=(4, 4))},
        "classifier": {"kernel": random.normal(size=(4, num_classes))},
    }
    return {"params": jax.tree.map(jnp.float32, params)}


def test_embeddings_and_whole_leaves_keep_their_axes():
    given = text_variables()
    state = to_torch(given, TEXT)
    shapes = {key: value.shape for key, value in state.items()}
    assert shapes == {
        "text.words.weight": (7, 4),
        "text.positions": (1, 5, 4),
        "text.h.0.fc.weight": (4, 6),
        "text.h.0.q.weight": (2, 4),
        "text.pooler.weight": (4, 4),
        "score.weight": (3, 4),
    }
    chex.assert_trees_all_equal(from_torch(state, jax.tree.map(jnp.zeros_like, given), TEXT), given)


def test_files_of_the_network_alone_lack_prefix_head_and_optional_layers():
    own, given = text_variables(2), text_variables(3)
    state = {key.removeprefix("text."): value for key, value in to_torch(given, TEXT).items()}
    state = {key: value for key, value in state.items() if key not in ("score.weight", "pooler.weight")}
    taken = from_torch(state | {"h.0.mask": np.ones(1)}, own, TEXT)
    given["params"] |= {name: own["params"][name] for name in ("classifier", "pooler")}
    chex.assert_trees_all_equal(taken, given)
    with pytest.raises(InputError, match=r"missing: text\.words\.weight \[7, 4\]\n  surplus: other \[1\]"):
        from_torch({key: x for key, x in state.items() if key != "words.weight"} | {"other": np.ones(1)}, own, TEXT)

"""Pretrained weights: PyTorch state dicts and their files.

Convolutions are [features, channel, height, width] in PyTorch and [height, width, channel, features] here, dense layers
[out, in] and [in, out]. PyTorch calls a norm's scale, mean and var weight, running_mean and running_var.
"""

import re
import shlex
import zipfile
from collections.abc import Callable, Container, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
import safetensors
import safetensors.numpy
from flax import traverse_util

from fedjax_het import tree
from fedjax_het._internal import atomic
from fedjax_het.errors import InputError
from fedjax_het.types import Array, Key, Model, Variables

StateDict = Mapping[str, np.ndarray]
_LEAVES = {"kernel": "weight", "scale": "weight", "bias": "bias", "mean": "running_mean", "var": "running_var"}
_HEAD = "params/classifier/"
_COUNTER = "num_batches_tracked"


class Naming(NamedTuple):
    """The names of a network's layers in PyTorch code.

    layers: {"stage_#_block_#/conv_#": "layer<1+>.<2>.conv<3+>"}: # is a number, <2> the second number, and <1+> the
    first number plus one.   convolved: our dense layers that are 1x1 convolutions in PyTorch.
    former: {pattern: replacement} for the keys of older files.
    """

    layers: Mapping[str, str]
    convolved: tuple[str, ...] = ()
    former: Mapping[str, str] = MappingProxyType({})


class _Entry(NamedTuple):
    key: str
    shape: tuple[int, ...]  # as in PyTorch
    is_head: bool


def to_torch(variables: Variables, naming: Naming) -> dict[str, np.ndarray]:
    """The state dict of these variables, without leaves missing from the naming, see `unnamed_leaves`.

    The batch counter of each batch norm is set to 0: PyTorch uses it only without a momentum.
    """
    leaves = tree.leaves_by_path(variables)
    state = {}
    for path, entry in _entries(leaves, naming):
        leaf = np.asarray(leaves[path])
        state[entry.key] = np.ascontiguousarray(leaf.transpose(_axes(leaf.ndim)).reshape(entry.shape))
    means = [key for key in state if key.endswith("running_mean")]
    return state | {key.replace("running_mean", _COUNTER): np.zeros((), np.int64) for key in means}


def unnamed_leaves(variables: Variables, naming: Naming) -> list[str]:
    """The paths of the leaves that `to_torch` omits."""
    leaves = tree.leaves_by_path(variables)
    return sorted(leaves.keys() - dict(_entries(leaves, naming)))


def from_torch(state: StateDict, variables: Variables, naming: Naming) -> Variables:
    """Load a state dict into these variables, preserving dtypes; leaves missing from the naming are unchanged.

    The head is also unchanged if the state dict has another number of classes. Prefixes added to all keys by wrappers,
    such as "module." by DataParallel, are removed.

    Raises:
        InputError: Keys are missing, unexpected or of another shape; the message lists the first ones.
    """
    leaves = tree.leaves_by_path(variables)
    entries = dict(_entries(leaves, naming))
    state = _remove_prefixes(state, {entry.key for entry in entries.values()})
    for pattern, replacement in naming.former.items():
        state = {re.sub(pattern, replacement, key): value for key, value in state.items()}
    state = {key: value for key, value in state.items() if not key.endswith(_COUNTER)}
    heads = {entry.key: entry.shape for entry in entries.values() if entry.is_head}
    if any(key in state and _is_other_head(state[key].shape, shape) for key, shape in heads.items()):
        entries = {path: entry for path, entry in entries.items() if not entry.is_head}
        state = {key: value for key, value in state.items() if key not in heads}
    _check_shapes(state, {entry.key: entry.shape for entry in entries.values()})
    return traverse_util.unflatten_dict(
        {path: _fill(leaf, state, entries.get(path)) for path, leaf in leaves.items()}, sep="/"
    )


def _entries(leaves: Mapping[str, Array], naming: Naming) -> Iterator[tuple[str, _Entry]]:
    for path, leaf in leaves.items():
        _, _, inside = path.partition("/")
        layer, _, kind = inside.rpartition("/")
        name = _find_torch_name(layer, naming)
        if name is not None and kind in _LEAVES:
            shape = tuple(leaf.shape[axis] for axis in _axes(leaf.ndim))
            if layer in naming.convolved and leaf.ndim == 2:
                shape = (*shape, 1, 1)
            yield path, _Entry(f"{name}.{_LEAVES[kind]}", shape, path.startswith(_HEAD))


def _find_torch_name(layer: str, naming: Naming) -> str | None:
    for ours, theirs in naming.layers.items():
        if match := re.fullmatch(ours.replace("#", r"(\d+)"), layer):
            return re.sub(r"<(\d)(\+?)>", lambda at, of=match: str(int(of[int(at[1])]) + len(at[2])), theirs)
    return None


def _axes(num_axes: int) -> tuple[int, ...]:
    """The axes in PyTorch's order; the inverse is the same for kernels [in, out], and `_fill` inverts the other."""
    return {4: (3, 2, 0, 1), 2: (1, 0)}.get(num_axes, tuple(range(num_axes)))


def _fill(leaf: Array, state: StateDict, entry: _Entry | None) -> Array:
    if entry is None:
        return leaf
    axes = _axes(leaf.ndim)
    value = state[entry.key].reshape([leaf.shape[axis] for axis in axes])
    return jnp.asarray(value.transpose(np.argsort(axes)), leaf.dtype)


def _remove_prefixes(state: StateDict, expected: Container[str]) -> StateDict:
    """Remove the leading components common to all keys, until a key is expected."""
    while not any(key in expected for key in state):
        prefixes = {key.partition(".")[0] for key in state}
        if len(prefixes) != 1 or not all("." in key for key in state):
            break
        state = {key.partition(".")[2]: value for key, value in state.items()}
    return state


def _is_other_head(theirs: tuple[int, ...], ours: tuple[int, ...]) -> bool:
    """By its weight, [class, feature]."""
    return len(theirs) == len(ours) > 1 and theirs[0] != ours[0] and theirs[1:] == ours[1:]


def _check_shapes(state: StateDict, expected: Mapping[str, tuple[int, ...]]) -> None:
    missing = [f"missing: {key} {list(shape)}" for key, shape in expected.items() if key not in state]
    surplus = [f"surplus: {key} {list(value.shape)}" for key, value in state.items() if key not in expected]
    reshaped = [
        f"of another shape: {key} is {list(state[key].shape)}, and {list(shape)} here"
        for key, shape in expected.items()
        if key in state and state[key].shape != shape
    ]
    if num_faults := len(missing) + len(surplus) + len(reshaped):
        named = [fault for kind in (missing, surplus, reshaped) for fault in kind[:_FAULTS_NAMED]]
        rest = [f"and {num_faults - len(named)} more"] if num_faults > len(named) else []
        raise InputError(
            f"pretrained: the file's weights do not fit this network ({num_faults} keys). Choose the network, norm, "
            "stem, width and number of input channels that they were trained with.\n  " + "\n  ".join(named + rest)
        )


def _read_npz(path: Path) -> StateDict:
    with np.load(path) as arrays:
        return dict(arrays)


_READERS = {".safetensors": safetensors.numpy.load_file, ".npz": _read_npz}
_WRITERS = {".safetensors": safetensors.numpy.save_file, ".npz": lambda state, path: np.savez(path, **state)}
_PICKLES = (".pth", ".pt", ".bin", ".ckpt")
_CONVERSION = (
    'python -c "import sys, torch, safetensors.torch as s; '
    "c = torch.load(sys.argv[1], map_location='cpu', weights_only=True); "
    "c = next((c[k] for k in ('state_dict', 'model_state_dict', 'model') if isinstance(c.get(k), dict)), c); "
    "s.save_file({k: v.detach().clone().contiguous() for k, v in c.items() if isinstance(v, torch.Tensor)}, "
    'sys.argv[2])" '
)
_FAULTS_NAMED = 3  # of each kind


def starting_from(path: str | Path | None, naming: Naming) -> Callable[[Model], Model]:
    """Initialize with the weights of a file instead of random ones; None changes nothing.

    A head for another number of classes is ignored: the model keeps its random head.

    Raises:
        InputError: The file cannot be read; or, when the model is initialized, the weights do not match (with the
            first keys that are missing, unexpected or of another shape).
    """
    if path is None:
        return lambda model: model
    state = read_state_dict(path)

    def adapt(model: Model) -> Model:
        def init(key: Key, inputs: Array) -> Variables:
            return from_torch(state, model.init(key, inputs), naming)

        return model._replace(init=init)

    return adapt


def read_state_dict(path: str | Path) -> StateDict:
    """Read a state dict from a .safetensors or .npz file.

    Raises:
        InputError: The format is unsupported (with instructions for PyTorch pickles), or the file cannot be read.
    """
    path = Path(path)
    name = path.with_suffix("") if path.suffix == ".tar" else path
    if name.suffix in _PICKLES:
        command = _CONVERSION + shlex.join([str(path), str(name.with_suffix(".safetensors"))])
        raise InputError(
            f"pretrained: '{path}' is a pickle, which can run any code. Convert it with PyTorch, and use the new file: "
            f"{command}"
        )
    _check_kind(path)
    try:
        if not path.is_file():
            raise InputError(f"pretrained: there is no file '{path}'.")
        return _READERS[path.suffix](path)
    except InputError:
        raise
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, safetensors.SafetensorError) as error:
        raise InputError(f"pretrained: '{path}' is no {path.suffix} file ({error}). Get or write it again.") from error


def save_state_dict(path: str | Path, variables: Variables, naming: Naming) -> None:
    """Write variables atomically as a state dict that the PyTorch network of this naming can load.

    Raises:
        InputError: The extension is not .safetensors or .npz, or the file cannot be written.
    """
    path = Path(path)
    _check_kind(path)
    try:
        atomic.write(path, lambda temporary: _WRITERS[path.suffix](to_torch(variables, naming), temporary))
    except (OSError, safetensors.SafetensorError) as error:
        raise InputError(f"'{path}' cannot be written ({error}). Choose another place.") from error


def _check_kind(path: Path) -> None:
    if path.suffix not in _READERS:
        raise InputError(f"pretrained: '{path}' ends with '{path.suffix}'. Known: {', '.join(_READERS)}.")

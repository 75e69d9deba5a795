"""Pretrained weights: the names and axes of PyTorch state dicts.

Convolutions are [features, channel, height, width] in PyTorch and [height, width, channel, features] here, dense layers
[out, in] and [in, out]. PyTorch calls a norm's scale, mean and var weight, running_mean and running_var, and an
embedding's table weight.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from flax import traverse_util

from fedjax_het import tree
from fedjax_het.errors import InputError
from fedjax_het.models._weight_files import StateDict
from fedjax_het.types import Array, Variables

_LEAVES = {
    **dict.fromkeys(("kernel", "scale", "embedding"), "weight"),
    **{"bias": "bias", "mean": "running_mean", "var": "running_var"},
}
_HEAD = "classifier"
COUNTER = "num_batches_tracked"
_FAULTS_NAMED = 3  # of each kind


class Naming(NamedTuple):
    """The names of a network's layers in PyTorch code.

    layers: {"stage_#_block_#/conv_#": "layer<1+>.<2>.conv<3+>"}: # is a number, <2> the second number, and <1+> the
    first number plus one. The path of a leaf, "positions", may be given in place of a layer's, with its whole key.
    "qkv@1/3" is the second third of the outputs of the file's layer qkv; "q&k&v" are three layers in the file, whose
    outputs follow each other in ours.
    convolved: our dense layers that are 1x1 convolutions in PyTorch.
    former: {pattern: replacement} for the keys of older files.
    untransposed: patterns such as "block_#/dense_0" of our dense layers whose kernels are [in, out] in the file too.
    prefix: a beginning of keys, "bert.", that files of the network without its head lack.
    optional: patterns of layers, besides the head, that such files lack; they are then initialized at random.
    ignored: a regular expression of keys that are no weights of the network, such as attention masks.
    needs_head: whether the head is loaded as other layers are, and never left random.
    batched: patterns of leaves [..., feature] that have three axes in the file, the first ones of size 1.
    in_memory: {pattern: replacement}, in this order, for keys that the code renames when it reads a file. Adapters have
    these names; they are read with those of the file, too.
    """

    layers: Mapping[str, str]
    convolved: tuple[str, ...] = ()
    former: Mapping[str, str] = MappingProxyType({})
    untransposed: tuple[str, ...] = ()
    prefix: str = ""
    optional: tuple[str, ...] = ()
    ignored: str = ""
    needs_head: bool = False
    batched: tuple[str, ...] = ()
    in_memory: Mapping[str, str] = MappingProxyType({})


Names = Naming | tuple[Naming, ...]
"""The names of a network in PyTorch code, or those of several implementations of it."""
Preparation = Callable[[StateDict, Naming], StateDict]


class Entry(NamedTuple):
    """The place of a leaf in a file."""

    keys: tuple[str, ...]
    part: tuple[int, int]  # (index, number of parts) of the outputs in the file
    axes: tuple[int, ...]  # the order of our axes in PyTorch
    shape: tuple[int, ...]  # as in PyTorch
    layer: str

    @property
    def key_shapes(self) -> dict[str, tuple[int, ...]]:
        """The shapes of the file's arrays."""
        rows = (self.shape[0] * self.part[1] // len(self.keys),) if self.shape else ()
        return dict.fromkeys(self.keys, rows + self.shape[1:])


def to_torch(variables: Variables, names: Names) -> dict[str, np.ndarray]:
    """The state dict of these variables, without leaves missing from the names, see `unnamed_leaves`.

    Of several implementations, the names are those of the first one that has the most leaves.

    The batch counter of each batch norm is set to 0: PyTorch uses it only without a momentum.
    """
    leaves, parts = tree.leaves_by_path(variables), {}
    for path, entry in list_entries(leaves, choose_naming(leaves, names)).items():
        leaf = np.asarray(leaves[path]).transpose(entry.axes).reshape(entry.shape)
        pieces = np.split(leaf, len(entry.keys)) if len(entry.keys) > 1 else [leaf]
        for key, piece in zip(entry.keys, pieces, strict=True):
            parts.setdefault(key, {})[entry.part] = piece
    state = {key: _join([pieces[part] for part in sorted(pieces)]) for key, pieces in parts.items()}
    means = [key for key in state if key.endswith("running_mean")]
    return state | {key.replace("running_mean", COUNTER): np.zeros((), np.int64) for key in means}


def unnamed_leaves(variables: Variables, names: Names) -> list[str]:
    """The paths of the leaves that `to_torch` omits."""
    leaves = tree.leaves_by_path(variables)
    return sorted(leaves.keys() - list_entries(leaves, choose_naming(leaves, names)))


def from_torch(state: StateDict, variables: Variables, names: Names, prepare: Preparation | None = None) -> Variables:
    """Load a state dict into these variables, preserving dtypes; leaves missing from the names are unchanged.

    Of several implementations, the names are those that most keys of the state dict have. `prepare` is given the state
    dict with the keys of these names.

    The head is also unchanged if the state dict has no head, or has another number of classes. Prefixes added to all
    keys by wrappers, such as "module." by DataParallel, are removed.

    Raises:
        InputError: Keys are missing, unexpected or of another shape; the message lists the first ones.
    """
    leaves = tree.leaves_by_path(variables)
    naming = choose_naming(leaves, names, state)
    entries, state = rename_keys(state, leaves, naming)
    entries, state = _without_random_layers(entries, prepare(state, naming) if prepare else state, naming)
    expected = list_shapes(entries.values())
    surplus = re.compile(rf".*{COUNTER}" + (f"|{naming.ignored}" if naming.ignored else ""))
    state = {key: value for key, value in state.items() if key in expected or not surplus.fullmatch(key)}
    _check_shapes(state, expected)
    return traverse_util.unflatten_dict(
        {path: fill(leaf, state, entries.get(path)) for path, leaf in leaves.items()}, sep="/"
    )


def rename_keys(
    state: Mapping[str, Any], leaves: Mapping[str, Any], naming: Naming
) -> tuple[dict[str, Entry], dict[str, Any]]:
    """(the entries of the leaves, the state dict without prefixes and names of older files)."""
    entries = list_entries(leaves, naming)
    expected = set(list_shapes(entries.values()))
    in_memory = {_replace(key, naming.in_memory): key for key in expected}
    state = {in_memory.get(key, _replace(key, naming.former)): value for key, value in state.items()}
    return entries, _remove_prefixes(state, expected, naming.prefix)


def name_in_memory(module: str, naming: Naming) -> str:
    """The name of a layer of the file where the code has read it."""
    return _replace(module, naming.in_memory)


def _replace(key: str, replacements: Mapping[str, str]) -> str:
    for pattern, replacement in replacements.items():
        key = re.sub(pattern, replacement, key)
    return key


def list_shapes(entries: Iterable[Entry]) -> dict[str, tuple[int, ...]]:
    """The arrays of the file by key."""
    return {key: shape for entry in entries for key, shape in entry.key_shapes.items()}


def choose_naming(leaves: Mapping[str, Any], names: Names, keys: Iterable[str] = ()) -> Naming:
    """Of several implementations, the names that most of these keys have; without keys, those that have most leaves."""
    state = dict.fromkeys(keys)

    def count_fitting(naming: Naming) -> int:
        entries, renamed = rename_keys(state, leaves, naming)
        return len(list_shapes(entries.values()).keys() & renamed.keys()) if state else len(entries)

    return max(to_namings(names), key=count_fitting)


def to_namings(names: Names) -> tuple[Naming, ...]:
    """The names of each implementation."""
    return (names,) if isinstance(names, Naming) else names


def _join(pieces: list[np.ndarray]) -> np.ndarray:
    return np.asarray(pieces[0] if len(pieces) == 1 else np.concatenate(pieces), order="C")


def list_entries(leaves: Mapping[str, Any], naming: Naming) -> dict[str, Entry]:
    """{path: the place in a file} of the leaves that have a name."""
    entries = {}
    for path, leaf in leaves.items():
        _, _, inside = path.partition("/")
        layer, _, kind = inside.rpartition("/")
        name, ending = _find_torch_name(inside, naming), ""
        if name is None and kind in _LEAVES:
            name, ending = _find_torch_name(layer, naming), f".{_LEAVES[kind]}"
        if name is not None:
            is_transposed = kind == "kernel" and not is_any(layer, naming.untransposed)
            axes = torch_axes(leaf.ndim) if is_transposed else tuple(range(leaf.ndim))
            shape = tuple(leaf.shape[axis] for axis in axes)
            if layer in naming.convolved and leaf.ndim == 2:
                shape = (*shape, 1, 1)
            if is_any(inside, naming.batched):
                shape = (*[1] * (3 - leaf.ndim), *shape)
            name, _, part = name.partition("@")
            index, count = map(int, part.split("/")) if part else (0, 1)
            keys = tuple(key + ending for key in name.split("&"))
            entries[path] = Entry(keys, (index, count), axes, shape, layer)
    return entries


def _find_torch_name(path: str, naming: Naming) -> str | None:
    for ours, theirs in naming.layers.items():
        if match := _match(ours, path):
            return re.sub(r"<(\d)(\+?)>", lambda tag, m=match: str(int(m[int(tag[1])]) + len(tag[2])), theirs)
    return None


def _match(pattern: str, path: str) -> re.Match[str] | None:
    return re.fullmatch(pattern.replace("#", r"(\d+)"), path)


def is_any(layer: str, patterns: tuple[str, ...]) -> bool:
    return any(_match(pattern, layer) for pattern in patterns)


def torch_axes(num_axes: int) -> tuple[int, ...]:
    """A kernel's axes in PyTorch's order."""
    return {4: (3, 2, 0, 1), 2: (1, 0)}.get(num_axes, tuple(range(num_axes)))


def fill(leaf: Array, state: StateDict, entry: Entry | None) -> Array:
    if entry is None:
        return leaf
    index, count = entry.part
    value = _join([state[key] for key in entry.keys])
    value = np.split(value, count)[index] if count > 1 else value
    value = value.reshape([leaf.shape[axis] for axis in entry.axes])
    return jnp.asarray(value.transpose(np.argsort(entry.axes)), leaf.dtype)


def _remove_prefixes(state: Mapping[str, Any], expected: set[str], optional: str) -> dict[str, Any]:
    """Remove the leading components common to all keys, until a key is expected; add the optional prefix."""
    begun = expected | {key.removeprefix(optional) for key in expected}
    while not any(key in begun for key in state):
        prefixes = {key.partition(".")[0] for key in state}
        if len(prefixes) != 1 or not all("." in key for key in state):
            break
        state = {key.partition(".")[2]: value for key, value in state.items()}
    return {key if key in expected or optional + key not in expected else optional + key: x for key, x in state.items()}


def _without_random_layers(
    entries: dict[str, Entry], state: StateDict, naming: Naming
) -> tuple[dict[str, Entry], StateDict]:
    """(the leaves to load, their weights), without the head and optional layers that the state dict lacks.

    So is a head with another number of classes.
    """
    for layer in {entry.layer for entry in entries.values()}:
        shapes = list_shapes(entry for entry in entries.values() if entry.layer == layer)
        held, is_head = shapes.keys() & state.keys(), layer.partition("/")[0] == _HEAD and not naming.needs_head
        is_missing = not held and (is_head or is_any(layer, naming.optional))
        if is_missing or (is_head and any(_is_other_head(state[key].shape, shapes[key]) for key in held)):
            entries = {path: entry for path, entry in entries.items() if entry.layer != layer}
            state = {key: value for key, value in state.items() if key not in shapes}
    return entries, state


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

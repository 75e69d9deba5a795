"""Files of pretrained weights: state dicts in one file or several, and directories with a configuration."""

import json
import shlex
import zipfile
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import safetensors.numpy

from fedjax_het._internal import atomic
from fedjax_het.errors import InputError
from fedjax_het.models._hub import locate

StateDict = Mapping[str, np.ndarray]
WEIGHTS, _INDEX, CONFIG = "model.safetensors", "model.safetensors.index.json", "config.json"


def _read_npz(path: Path) -> StateDict:
    with np.load(path) as arrays:
        return dict(arrays)


_READERS = {".safetensors": safetensors.numpy.load_file, ".npz": _read_npz}
_WRITERS = {
    ".safetensors": partial(safetensors.numpy.save_file, metadata={"format": "pt"}),
    ".npz": lambda state, path: np.savez(path, **state),
}
_PICKLES = (".pth", ".pt", ".bin", ".ckpt")
_CONVERSION = (
    'python -c "import sys, torch, safetensors.torch as s; '
    "c = torch.load(sys.argv[1], map_location='cpu', weights_only=True); "
    "c = next((c[k] for k in ('state_dict', 'model_state_dict', 'model') if isinstance(c.get(k), dict)), c); "
    "s.save_file({k: v.detach().clone().contiguous() for k, v in c.items() if isinstance(v, torch.Tensor)}, "
    'sys.argv[2])" '
)


def read_state_dict(path: str | Path) -> StateDict:
    """Read a state dict.

    Args:
        path: A .safetensors or .npz file; the index of several .safetensors files, model.safetensors.index.json; or a
            directory with model.safetensors or such an index; or "hf:<owner>/<name>", see `locate`.

    Raises:
        InputError: The format is unsupported (with instructions for PyTorch pickles), or a file cannot be read.
    """
    path = _find_weights(locate(path))
    name = path.with_suffix("") if path.suffix == ".tar" else path
    if name.suffix in _PICKLES:
        command = _CONVERSION + shlex.join([str(path), str(name.with_suffix(".safetensors"))])
        raise InputError(
            f"pretrained: '{path}' is a pickle, which can run any code. Convert it with PyTorch, and use the new file: "
            f"{command}"
        )
    if path.name.endswith(".index.json"):
        return _read_shards(path)
    _check_kind(path)
    try:
        _check_exists(path)
        return _READERS[path.suffix](path)
    except InputError:
        raise
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, safetensors.SafetensorError) as error:
        raise InputError(f"pretrained: '{path}' is not a {path.suffix} file ({error}). Write it again.") from error


def write_state_dict(path: str | Path, state: StateDict) -> None:
    """Write a state dict atomically.

    Raises:
        InputError: The extension is not .safetensors or .npz, or the file cannot be written.
    """
    path = Path(path)
    _check_kind(path)
    try:
        atomic.write(path, lambda temporary: _WRITERS[path.suffix](dict(state), temporary))
    except (OSError, safetensors.SafetensorError) as error:
        raise InputError(f"'{path}' cannot be written ({error}). Choose another place.") from error


def make_folder(folder: Path) -> None:
    """Make a folder for files.

    Raises:
        InputError: It cannot be made.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"'{folder}' cannot be made ({error}). Choose another place.") from error


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write a JSON object atomically.

    Raises:
        InputError: The file cannot be written.
    """
    try:
        atomic.write(path, json.dumps(content, indent=2) + "\n")
    except OSError as error:
        raise InputError(f"'{path}' cannot be written ({error}). Choose another place.") from error


def read_config(path: str | Path) -> Mapping[str, Any]:
    """Read the config.json of a directory with published weights.

    Raises:
        InputError: There is no such file, or it holds no JSON object.
    """
    return read_json(locate(path) / CONFIG)


def read_json(path: Path) -> Mapping[str, Any]:
    """Read a JSON object beside weights.

    Raises:
        InputError: There is no such file, or it holds no JSON object.
    """
    _check_exists(path)
    return _read_object(path)


def complete_sizes(
    path: str | None, keys: Mapping[str, str], usual: Mapping[str, Any], given: Mapping[str, Any]
) -> dict[str, Any]:
    """The arguments of a network: those given, else from the config.json beside its weights, else the usual values.

    Args:
        path: The pretrained file or directory; only a directory can have a config.json.
        keys: {argument: its key in config.json}; a key that is missing there, or null, is the usual value. "a|b.c" is
            the first of a and the key c of the table b.
        usual: {argument: value}.
        given: {argument: value}; None where not given.

    Raises:
        InputError: An argument contradicts config.json.
    """
    config = read_config_beside(path)
    published = {name: value for name, key in keys.items() if (value := _find_value(config, key)) is not None}
    chosen = {name: value for name, value in given.items() if value is not None}
    for name, value in chosen.items():
        if published.get(name, value) != value:
            raise InputError(
                f"{name}: {value} contradicts '{path}/{CONFIG}', where {keys[name]} is {published[name]}. Omit {name}."
            )
    return {**usual, **published, **chosen}


def describe_sizes(
    keys: Mapping[str, str], supported: Mapping[str, Sequence[Any]], sizes: Mapping[str, Any]
) -> dict[str, Any]:
    """The content of config.json for a network of these sizes; the inverse of `complete_sizes` and `check_config`."""
    own = {key.partition("|")[0]: sizes[name] for name, key in keys.items() if sizes.get(name) is not None}
    return {key: values[0] for key, values in supported.items()} | own


def _find_value(config: Mapping[str, Any], keys: str) -> Any:
    for key in keys.split("|"):
        table, _, inner = key.rpartition(".")
        value = ((config.get(table) or {}) if table else config).get(inner)
        if value is not None:
            return value
    return None


def check_config(path: str, supported: Mapping[str, Sequence[Any]]) -> None:
    """Check the config.json beside weights, if there is one: {key: its supported values}; missing keys pass.

    Raises:
        InputError: A value is not supported.
    """
    config = read_config_beside(path)
    for key, values in supported.items():
        if key in config and config[key] not in values:
            known = " or ".join(map(str, values))
            raise InputError(
                f"pretrained: {key} is {config[key]} in '{path}/{CONFIG}', and this network supports {known}. Choose "
                "the model of these weights."
            )


def read_config_beside(path: str | Path | None) -> Mapping[str, Any]:
    """The config.json of a directory with weights; {} if there is none."""
    return read_config(path) if path is not None and (locate(path) / CONFIG).is_file() else {}


def _find_weights(path: Path) -> Path:
    if not path.is_dir():
        return path
    found = [path / name for name in (WEIGHTS, _INDEX) if (path / name).is_file()]
    pickles = sorted(file for file in path.iterdir() if file.suffix in _PICKLES)
    if not found and not pickles:
        raise InputError(
            f"pretrained: the directory '{path}' has neither {WEIGHTS} nor {_INDEX}. Download one of them."
        )
    return (found or pickles)[0]


def _read_shards(index: Path) -> StateDict:
    """The weights of every file that the index names; they must be the keys of the index."""
    _check_exists(index)
    places = _read_object(index).get("weight_map")
    is_map = isinstance(places, dict) and all(isinstance(name, str) for name in places.values())
    if not is_map or any(Path(name).name != name for name in places.values()):
        raise InputError(f"pretrained: '{index}' has no weight_map of names of files beside it. Download it again.")
    state: dict[str, np.ndarray] = {}
    for name in sorted(set(places.values())):
        shard = read_state_dict(index.with_name(name))
        expected = {key for key, place in places.items() if place == name}
        if differing := sorted(expected ^ shard.keys()):
            kind = "lacks" if differing[0] in expected else "has besides the index"
            raise InputError(
                f"pretrained: '{index.with_name(name)}' {kind} {differing[0]} ({len(differing)} keys differ from the "
                f"index). Download it and '{index.name}' again, from the same place."
            )
        state |= shard
    return state


def _read_object(path: Path) -> Mapping[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"pretrained: '{path}' is not a JSON file ({error}). Get it again.") from error
    if not isinstance(content, dict):
        raise InputError(f"pretrained: '{path}' holds no JSON object. Get it again.")
    return content


def _check_exists(path: Path) -> None:
    if not path.is_file():
        raise InputError(f"pretrained: there is no file '{path}'.")


def _check_kind(path: Path) -> None:
    if path.suffix not in _READERS:
        raise InputError(f"pretrained: '{path}' ends with '{path.suffix}'. Known: {', '.join(_READERS)}.")

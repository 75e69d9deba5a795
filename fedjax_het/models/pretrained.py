"""Weights that were trained with PyTorch, and ours on their way there."""

import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import safetensors
import safetensors.numpy

from fedjax_het._internal import atomic
from fedjax_het.errors import InputError
from fedjax_het.models.state_dict import Naming, StateDict, from_torch, to_torch
from fedjax_het.types import Array, Key, Model, Variables


def _read_npz(path: Path) -> StateDict:
    with np.load(path) as arrays:
        return dict(arrays)


_READERS = {".safetensors": safetensors.numpy.load_file, ".npz": _read_npz}
_WRITERS = {".safetensors": safetensors.numpy.save_file, ".npz": lambda state, path: np.savez(path, **state)}
_PICKLES = (".pth", ".pt", ".bin", ".ckpt")
_CONVERSION = (
    'python -c "import torch, safetensors.torch as s; '
    "s.save_file(torch.load('{old}', map_location='cpu', weights_only=True), '{new}')\""
)


def starting_from(path: str | Path | None, naming: Naming) -> Callable[[Model], Model]:
    """Begin with the weights of a file instead of random ones; None changes nothing.

    A head for another number of classes is left out: the model keeps its own, drawn as ever.
    Raises InputError for a file that cannot be read, now, and where the weights do not fit, when the model is
    initialised, with every key that is missing, surplus or of another shape.
    """
    if path is None:
        return lambda model: model
    state = read(path)

    def adapt(model: Model) -> Model:
        def init(key: Key, inputs: Array) -> Variables:
            return from_torch(state, model.init(key, inputs), naming)

        return model._replace(init=init)

    return adapt


def read(path: str | Path) -> StateDict:
    """A state dict from a .safetensors or .npz file.

    Raises InputError for other kinds, with how to convert a pickle of PyTorch's, and for a file that cannot be read.
    """
    path = Path(path)
    if path.suffix in _PICKLES:
        command = _CONVERSION.format(old=path, new=path.with_suffix(".safetensors"))
        raise InputError(
            f"pretrained: '{path}' is a pickle, which can run any code. Convert it, with PyTorch: {command}"
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


def save(path: str | Path, variables: Variables, naming: Naming) -> None:
    """Write variables as a state dict that PyTorch's network of that naming loads; whole or not at all.

    Raises InputError for another ending than .safetensors or .npz, and where it cannot be written.
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

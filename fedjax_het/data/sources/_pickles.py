"""Pickles of arrays, read without running what else a pickle may hold."""

import io
import pickle
from pathlib import Path

import numpy as np

from fedjax_het._internal.regular_files import read_regular
from fedjax_het.data.sources._io_errors import report_read_errors
from fedjax_het.errors import InputError


class _ArrayUnpickler(pickle.Unpickler):
    """Unpickles arrays and containers only: a pickle may request calls of any function."""

    _ALLOWED = {
        ("multiarray", "_reconstruct"): np._core.multiarray._reconstruct,
        ("numeric", "_frombuffer"): np._core.numeric._frombuffer,  # pyrefly: ignore[missing-attribute], not in NumPy's stubs
        ("numpy", "ndarray"): np.ndarray,
        ("numpy", "dtype"): np.dtype,
        ("_codecs", "encode"): lambda text, codec: text.encode("latin1"),  # how Python 3 writes bytes for Python 2
    }

    def find_class(self, module: str, name: str) -> object:
        short = module.removeprefix("numpy.core.").removeprefix("numpy._core.")
        if (short, name) not in self._ALLOWED:
            raise pickle.UnpicklingError(f"it wants to use {module}.{name}, which no batch of images needs")
        return self._ALLOWED[short, name]


def read_pickle(path: Path, kind: type | tuple[type, ...], what: str, encoding: str = "ASCII") -> object:
    """Read a pickle of arrays, texts, numbers and containers.

    Args:
        path: The file.
        kind: The class of its content.
        what: What the file is, for messages: "a CIFAR python batch".
        encoding: How texts that Python 2 wrote are read; "bytes" leaves them as they are.

    Raises:
        InputError: The file does not exist, is damaged, holds something else, or wants to call other functions.
    """
    with report_read_errors(path):
        try:
            content = _ArrayUnpickler(io.BytesIO(read_regular(path)), encoding=encoding).load()
        except (pickle.UnpicklingError, TypeError, AttributeError) as error:
            raise InputError(f"cannot read {path} as {what}: {error}. Download it again.") from error
    if not isinstance(content, kind):
        names = " or ".join(each.__name__ for each in (kind if isinstance(kind, tuple) else (kind,)))
        raise InputError(f"cannot read {path} as {what}: it holds a {type(content).__name__}, not a {names}.")
    return content

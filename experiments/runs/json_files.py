"""Writing of JSON and text files: atomically or by appending, after a check that the directory is writable."""

import json
import math
import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from fedjax_het._internal.atomic import write
from fedjax_het.errors import InputError, shorten

__all__ = ["append", "check_writable", "to_json", "write"]


def append(path: Path, text: str) -> None:
    """Append text to a file; it is on disk when this returns. A kill may leave an incomplete last line."""
    with path.open("a") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def to_json(value: Any, indent: int | None = None) -> str:
    """Convert to JSON, with NumPy values as numbers and lists, and NaN and infinity as null."""
    return json.dumps(_to_plain(value), indent=indent, allow_nan=False)


def _to_plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _to_plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_to_plain(item) for item in value]
    if isinstance(value, (np.ndarray, np.generic)):
        return _to_plain(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def check_writable(directory: Path) -> None:
    """Raise InputError if this directory cannot be made or written; leave nothing behind."""
    place = directory
    try:
        while not place.exists() and place != place.parent:
            place = place.parent
        with tempfile.TemporaryFile(dir=place):
            return
    except OSError as error:
        reason = error.strerror or str(error)
        raise InputError(
            f"--workdir: cannot write to {shorten(str(directory))} ({reason}: {shorten(str(place))}). Choose another."
        ) from error

"""Files of a run: written whole or added to, as JSON, where there is room to write."""

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
    """Add text at the end of a file, on disk when this returns; a kill may leave a torn last line."""
    with path.open("a") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def to_json(value: Any, indent: int | None = None) -> str:
    """JSON with NumPy values as numbers and lists, and NaN and infinity as null."""
    return json.dumps(_plain(value), indent=indent, allow_nan=False)


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _plain(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(one) for one in value]
    if isinstance(value, (np.ndarray, np.generic)):
        return _plain(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def check_writable(directory: Path) -> None:
    """Raises InputError where this directory could not be made or written; leaves nothing behind."""
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

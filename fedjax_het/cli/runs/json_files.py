"""Writing of JSON, CSV and text files: atomically or by appending, after a check that the directory is writable."""

import csv
import io
import json
import math
import os
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from fedjax_het._internal.atomic import write
from fedjax_het.errors import InputError, shorten

__all__ = ["append", "check_writable", "to_csv", "to_json", "write"]


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


def to_csv(header: Iterable[str], rows: Iterable[Iterable[Any]]) -> str:
    """Convert to CSV, with an empty cell for None."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([header, *rows])
    return text.getvalue()


def check_writable(directory: Path, flag: str = "--workdir") -> None:
    """Raise InputError, which names the flag, if this directory cannot be made or written; leave nothing behind."""
    place = directory
    try:
        while not place.exists() and place != place.parent:
            place = place.parent
        with tempfile.TemporaryFile(dir=place):
            return
    except OSError as error:
        reason = error.strerror or str(error)
        raise InputError(
            f"{flag}: cannot write to {shorten(str(directory))} ({reason}: {shorten(str(place))}). Choose another."
        ) from error

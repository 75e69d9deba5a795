"""File errors: which file is missing or damaged, and how to fix it."""

import csv
import difflib
import lzma
import os
import struct
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from PIL import Image

from fedjax_het._internal.regular_files import check_regular
from fedjax_het.errors import InputError, shorten

# Raised by NumPy, csv, zipfile, gzip, pickle, Pillow and array_record for damaged files.
_DAMAGE = (
    *(OSError, EOFError, ValueError, KeyError, IndexError, SyntaxError, RuntimeError),
    *(csv.Error, zlib.error, struct.error, lzma.LZMAError, zipfile.BadZipFile, Image.DecompressionBombError),
)


def require_path(path: str | Path) -> Path:
    """Expand "~" in the path of a file or folder; raise InputError if it does not exist or is an unreadable folder."""
    try:
        path = Path(path).expanduser()
        exists = path.exists()
    except (OSError, RuntimeError) as error:  # the name is too long, or the user unknown
        reason = str(getattr(error, "strerror", None) or error).rstrip(".")
        raise InputError(f"path: cannot use {shorten(str(path))}: {reason}. Give another path.") from error
    if not exists:
        neighbors = [entry.name for entry in path.parent.iterdir()] if path.parent.is_dir() else []
        close = difflib.get_close_matches(path.name, neighbors, n=1)
        hint = f"Did you mean {path.parent / close[0]}?" if close else "Give the path of an existing file or folder."
        raise InputError(f"path: {path} does not exist. {hint}")
    if path.is_dir() and not os.access(path, os.R_OK | os.X_OK):
        raise InputError(f"path: cannot read {path}: Permission denied. Change its permissions, or give another path.")
    return path


def require_dataset(path: str | Path, title: str, url: str, marker: str = "", inside: str = "") -> Path:
    """The folder of a data set that contains `marker`: `path`, or its subfolder `inside`.

    Raises:
        InputError: There is none; the message states where the data set is published.
    """
    try:
        place = require_path(path)
    except InputError as error:
        raise InputError(f"{error} {title} is published at {url}; it is not downloaded automatically.") from error
    for root in (place, place / inside):
        if (root / marker).exists():
            return root
    raise InputError(f"{place} holds no {marker}, nor does {inside}/ in it. {title} is published at {url}")


@contextmanager
def report_read_errors(path: str | Path) -> Iterator[None]:
    """Convert any failure to read `path` to an InputError that names it."""
    require_path(path)
    try:
        check_regular(path)
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}. Give another file.") from error
    try:
        yield
    except InputError:
        raise
    except PermissionError as error:
        raise InputError(f"cannot read {path}: {error.strerror}. Change its permissions.") from error
    except _DAMAGE as error:
        raise InputError(
            f"cannot read {path}: {str(error) or type(error).__name__}. The file is damaged, cut short or of another "
            "format; download it again."
        ) from error


@contextmanager
def report_write_errors(folder: Path) -> Iterator[None]:
    """Convert errors of a full or read-only disk to InputError."""
    try:
        yield
    except OSError as error:
        raise InputError(
            f"cache: cannot write decoded data to {folder}: {error.strerror or error}. Give another folder."
        ) from error

"""What every reader of files does alike: say which file is missing or damaged, and what to do about it."""

import difflib
import lzma
import os
import stat
import struct
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from PIL import Image

from fedjax_het.errors import InputError, shorten

# What numpy, zipfile, gzip, pickle, Pillow and array_record raise on bytes that are not what they should be.
_DAMAGE = (
    OSError,
    EOFError,
    ValueError,
    KeyError,
    IndexError,
    SyntaxError,
    zlib.error,
    struct.error,
    Image.DecompressionBombError,
    lzma.LZMAError,
    RuntimeError,
    zipfile.BadZipFile,
)


def require_path(path: str | Path) -> Path:
    """The path, "~" spelled out; InputError if nothing is there, or a folder whose content may not be read."""
    try:
        path = Path(path).expanduser()
        is_there = path.exists()
    except (OSError, RuntimeError) as error:  # a name that is too long, a user who is not known
        raise InputError(
            f"{shorten(str(path))} cannot be: {str(getattr(error, 'strerror', None) or error).rstrip('.')}."
        ) from error
    if not is_there:
        folder = path.parent
        neighbours = [each.name for each in folder.iterdir()] if folder.is_dir() else []
        close = difflib.get_close_matches(path.name, neighbours, n=1)
        hint = f"Did you mean {folder / close[0]}?" if close else "Give the path of a file or folder that is there."
        raise InputError(f"{path} does not exist. {hint}")
    if path.is_dir() and not os.access(path, os.R_OK | os.X_OK):
        raise InputError(f"cannot read {path}: Permission denied. Mend its permissions, or give another path.")
    return path


def check_regular(path: str | Path, mode: int | None = None) -> None:
    """Raise InputError for what is neither a file nor a folder: to open a FIFO would wait for whoever writes to it.

    Args:
        path: What is about to be read.
        mode: Its st_mode, where that is known.
    """
    mode = os.stat(path).st_mode if mode is None else mode
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise InputError(f"cannot read {path}: it is no ordinary file but a pipe, socket or device. Remove it.")


def require_dataset(path: str | Path, what: str, url: str) -> Path:
    """The path, as `existing`; where nothing is there the error says where this data set is published."""
    try:
        return require_path(path)
    except InputError as error:
        raise InputError(f"{error} {what} is published at {url}; nothing is downloaded for you.") from error


@contextmanager
def report_read_errors(path: str | Path) -> Iterator[None]:
    """Any failure to read `path` becomes an InputError that names it."""
    require_path(path)
    check_regular(path)
    try:
        yield
    except InputError:
        raise
    except PermissionError as error:
        raise InputError(f"cannot read {path}: {error.strerror}. Mend its permissions.") from error
    except _DAMAGE as error:
        raise InputError(
            f"cannot read {path}: {str(error) or type(error).__name__}. The file is damaged, cut short or of another "
            "format; fetch it again."
        ) from error

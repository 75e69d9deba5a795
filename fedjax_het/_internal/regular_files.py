"""Reading of the files that a user or a run directory names: nothing that waits, and no more than a limit."""

import errno
import gzip
import os
import stat
from pathlib import Path
from typing import BinaryIO

LIMIT = 1 << 32  # bytes


def open_regular(path: str | Path) -> BinaryIO:
    """Open a file for reading, without waiting for the writer of a FIFO.

    Raises:
        OSError: There is no such file, or it is a folder, FIFO, socket or device.
    """
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        mode = os.fstat(handle).st_mode
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        check_regular(path, mode)
        return os.fdopen(handle, "rb")
    except OSError:
        os.close(handle)
        raise


def check_regular(path: str | Path, mode: int | None = None) -> None:
    """Raise OSError for what is neither a file nor a folder: to open a FIFO would wait for its writer.

    Args:
        path: The file.
        mode: Its mode, if it is known.
    """
    mode = os.stat(path).st_mode if mode is None else mode
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise OSError(errno.EINVAL, "it is not a regular file but a pipe, socket or device", str(path))


def read_regular(path: str | Path, limit: int = LIMIT) -> bytes:
    """Read a whole file; compressed files have names ending in .gz.

    Args:
        path: The file.
        limit: The largest number of bytes, of the decompressed content.

    Raises:
        OSError: There is no such regular file, or it holds more.
        EOFError: A compressed file is cut short.
        zlib.error: A compressed file is damaged.
    """
    with open_regular(path) as file:
        is_compressed = Path(path).suffix == ".gz"
        is_larger = os.fstat(file.fileno()).st_size > limit
        content = b"" if is_larger else (gzip.GzipFile(fileobj=file) if is_compressed else file).read(limit + 1)
    if is_larger or len(content) > limit:
        raise OSError(errno.EFBIG, f"it holds more than {limit:,} bytes", str(path))
    return content


def read_text(path: str | Path) -> str:
    """Read a whole file in UTF-8, without the byte order mark that Excel writes; see `read_regular`."""
    return read_regular(path).decode("utf-8-sig")

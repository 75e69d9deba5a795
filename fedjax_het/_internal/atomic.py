"""Atomic writes: a reader, or a run that was killed, finds the old file or the new one, never a part of it."""

import os
from collections.abc import Callable
from pathlib import Path


def write(path: Path, content: str | bytes | Callable[[Path], None]) -> None:
    """Replace a file in one step.

    Args:
        path: The file.
        content: Text, bytes, or a function that writes the file at the path that it is given.
    """
    temporary = path.with_name(f".partial.{path.name}")
    try:
        if callable(content):
            content(temporary)
        else:
            temporary.write_bytes(content.encode() if isinstance(content, str) else content)
        sync(temporary)
    except Exception as error:
        temporary.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.filename is None:
            error.filename = str(path)  # the system names no file when a disk is full
        raise
    os.replace(temporary, path)
    sync(path.parent)


def sync(path: Path) -> None:
    """Wait until a file, or the list of files of a folder, is on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)

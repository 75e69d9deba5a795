"""Writing files whole: a reader, or a run killed at any moment, finds the old file or the new one, never half a one."""

import os
from collections.abc import Callable
from pathlib import Path


def write(path: Path, content: str | bytes | Callable[[Path], None]) -> None:
    """Replace a file in one step: text, bytes, or a function that writes the file it is given."""
    temporary = path.with_name(f".partial.{path.name}")
    if callable(content):
        try:
            content(temporary)
        except Exception:
            temporary.unlink(missing_ok=True)
            raise
    else:
        temporary.write_bytes(content.encode() if isinstance(content, str) else content)
    sync(temporary)
    os.replace(temporary, path)
    sync(path.parent)


def sync(path: Path) -> None:
    """Return when a file, or which files a folder has, is on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)

"""A folder that one process at a time may fill."""

import logging
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from fedjax_het.errors import InputError

_LOG = logging.getLogger("fedjax_het")


@contextmanager
def sole_writer(partial: Path) -> Iterator[Path]:
    """An empty folder that nobody else writes to: locked, and gone afterwards unless it was renamed.

    The lock is on the folder itself, so a process that is killed leaves no lock behind, only files to clear away.
    """
    while True:
        with writing(partial):
            handle = _opened(partial)
        if handle is None:
            continue
        try:
            with writing(partial):
                _lock(handle, partial)
            # Whoever held the lock may have renamed or removed the folder that we opened.
            if not _is_at(handle, partial):
                continue
            with writing(partial):
                for leftover in partial.iterdir():
                    _LOG.warning("%s was left half-written and is made anew", leftover)
                    leftover.unlink()
            try:
                yield partial
            finally:
                if _is_at(handle, partial):
                    shutil.rmtree(partial, ignore_errors=True)
            return
        finally:
            os.close(handle)


def _opened(folder: Path) -> int | None:
    """None where another process has just renamed or removed it.

    Not mkdir(exist_ok=True): that looks at what exists a moment later, and fails where it is gone by then.
    """
    with suppress(FileExistsError):
        folder.mkdir()
    with suppress(FileNotFoundError):
        return os.open(folder, os.O_RDONLY | os.O_DIRECTORY)


def _is_at(handle: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(handle), path.stat())
    except FileNotFoundError:
        return False


def _lock(handle: int, partial: Path) -> None:
    import fcntl  # POSIX only: to import the package must not need it

    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        _LOG.info("another process writes %s: waiting for it", partial)
        fcntl.flock(handle, fcntl.LOCK_EX)


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """A disk that is full or may not be written becomes an InputError."""
    try:
        yield
    except OSError as error:
        raise InputError(
            f"cannot write decoded data to {folder}: {error.strerror or error}. Give another folder with `cache`."
        ) from error

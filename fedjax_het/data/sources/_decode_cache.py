"""A folder that one process at a time may fill."""

import hashlib
import json
import logging
import os
import re
import shutil
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

import numpy as np

from fedjax_het._internal.cache_folder import cache_folder
from fedjax_het._internal.machine_memory import host_memory
from fedjax_het.data.sources._growable_npy import DamagedArraysError, GrowableNpyWriter, open_arrays
from fedjax_het.data.sources._images import check_space
from fedjax_het.data.sources._io_errors import check_regular
from fedjax_het.errors import InputError

_LOG = logging.getLogger("fedjax_het")


@contextmanager
def write_lock(partial: Path) -> Iterator[Path]:
    """An empty folder that nobody else writes to: locked, and gone afterwards unless it was renamed.

    The lock is on the folder itself, so a process that is killed leaves no lock behind, only files to clear away.
    """
    while True:
        with report_write_errors(partial):
            handle = _open_folder(partial)
        if handle is None:
            continue
        try:
            with report_write_errors(partial):
                _lock(handle, partial)
            # Whoever held the lock may have renamed or removed the folder that we opened.
            if not _is_at(handle, partial):
                continue
            with report_write_errors(partial):
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


def _open_folder(folder: Path) -> int | None:
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
def report_write_errors(folder: Path) -> Iterator[None]:
    """A disk that is full or may not be written becomes an InputError."""
    try:
        yield
    except OSError as error:
        raise InputError(
            f"cannot write decoded data to {folder}: {error.strerror or error}. Give another folder with `cache`."
        ) from error


Item = TypeVar("Item")
Chunk = Mapping[str, np.ndarray]
_FORMAT = 1  # of the cache; another number leaves what earlier versions wrote alone
_LOG_INTERVAL = 10.0  # seconds between two lines on how far it is
_WORKERS = min(16, os.cpu_count() or 1)


def decode_once(
    name: str,
    items: Sequence[Item],
    read: Callable[[Item], Chunk],
    *,
    files: Sequence[str | Path],
    options: Mapping[str, object],
    cache: str | None,
) -> dict[str, np.memmap]:
    """{"inputs": [n, ...], ...}: what `read` makes of the items, one after the other, memory-mapped and read-only.

    The arrays lie in `cache` (None: the user's cache folder) under <name>-<hash>. The hash is of the files' names
    relative to their common folder, sizes and times of last change, of their order, and of `options`, which must tell
    everything else that `read` depends on. Contents are not hashed: reading every file would take as long as decoding
    it, and a file that is written again changes its time. A cache that is damaged or half-written is made anew, with
    a warning to the logger "fedjax_het"; a second process waits for the first.
    `read` runs in threads; items that are tuples are called after their first entry in messages.
    Raises InputError as `read` does, for rows that differ in shape, and where the cache cannot be written.
    """
    folder = _cache_root(cache) / f"{re.sub(r'[^A-Za-z0-9_.-]+', '_', name)}-{_cache_key(files, options)}"
    if (arrays := _open_cached(folder)) is not None:
        return arrays
    asked = options.get("size"), options.get("channels")
    check_space(min(len(items), _WORKERS), *asked, host_memory(), "this machine's memory")
    check_space(len(items), *asked, shutil.disk_usage(folder.parent).free, str(folder.parent))
    with write_lock(folder.with_name(f"{folder.name}.partial")) as partial:
        if (arrays := _open_cached(folder)) is not None:
            return arrays
        _write_arrays(partial, items, read, options)
        with report_write_errors(folder):
            shutil.rmtree(folder, ignore_errors=True)
            partial.rename(folder)
    return open_arrays(folder)


def map_in_order(function: Callable, items: Sequence) -> Iterator:
    """function(item) for every item, in threads, handed out in the order of the items; few are under way at a time."""
    with ThreadPoolExecutor(_WORKERS) as pool:
        waiting = deque()
        for item in items:
            waiting.append(pool.submit(function, item))
            if len(waiting) > 2 * _WORKERS:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


def _cache_root(cache: str | None) -> Path:
    root = Path(cache).expanduser() if cache else cache_folder() / "data"
    with report_write_errors(root):
        root.mkdir(parents=True, exist_ok=True)
    return root


def _cache_key(files: Sequence[str | Path], options: Mapping[str, object]) -> str:
    paths = [str(file) for file in files]
    folder = os.path.commonpath([os.path.dirname(path) for path in paths])
    digest = hashlib.sha256(json.dumps({"format": _FORMAT, **options}, sort_keys=True).encode())
    for path in paths:
        try:
            about = os.stat(path)
        except OSError as error:
            raise InputError(f"cannot read {path}: {error.strerror}. Restore it.") from error
        check_regular(path, about.st_mode)
        digest.update(os.fsencode(f"{path[len(folder) :]}\0{about.st_size}\0{about.st_mtime_ns}\n"))
    return digest.hexdigest()[:16]


def _open_cached(folder: Path) -> dict[str, np.memmap] | None:
    with report_write_errors(folder):
        if not folder.exists():
            return None
    try:
        return open_arrays(folder)
    except DamagedArraysError as error:
        _LOG.warning("the cache %s is damaged and is made anew: %s", folder, error)
        return None


def _write_arrays(
    folder: Path, items: Sequence[Item], read: Callable[[Item], Chunk], options: Mapping[str, object]
) -> None:
    writer, told = GrowableNpyWriter(folder), time.monotonic()
    for i, (item, chunk) in enumerate(zip(items, map_in_order(read, items), strict=True)):
        with report_write_errors(folder):
            writer.add(str(item[0] if isinstance(item, tuple) else item), chunk)
        if time.monotonic() - told > _LOG_INTERVAL:
            told = time.monotonic()
            _LOG.info("decoded %d of %d into %s", i + 1, len(items), folder)
    with report_write_errors(folder):
        writer.seal(options)

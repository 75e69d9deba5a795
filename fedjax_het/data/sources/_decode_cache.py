"""Cache of decoded examples: memory-mapped arrays in a folder that one process at a time writes."""

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
from typing import Any, TypeVar

import numpy as np

from fedjax_het._internal.cache_folder import cache_folder
from fedjax_het._internal.machine_memory import host_memory
from fedjax_het.data.sources._growable_npy import DamagedArraysError, GrowableNpyWriter, open_arrays
from fedjax_het.data.sources._images import check_space
from fedjax_het.data.sources._io_errors import check_regular, report_write_errors
from fedjax_het.errors import InputError

Item = TypeVar("Item")
Chunk = Mapping[str, np.ndarray]
_LOG = logging.getLogger("fedjax_het")
_FORMAT = 1  # of the cache; folders of another format are not opened
_LOG_INTERVAL = 10.0  # seconds between two messages on the progress
_WORKERS = min(16, os.cpu_count() or 1)


def decode_once(
    name: str,
    items: Sequence[Item],
    read: Callable[[Item], Chunk],
    *,
    files: Sequence[str | Path],
    options: Mapping[str, Any],
    cache: str | None,
) -> dict[str, np.memmap]:
    """Decode items, or open the arrays of an earlier call: {"inputs": [n, ...], ...}, memory-mapped and read-only.

    The arrays lie in `cache` under <name>-<hash>. The hash is of the files' order, names relative to their common
    folder, sizes and times of last change, and of `options`. Contents are not hashed: reading all files would take as
    long as decoding them, and a file that is written again changes its time. A damaged or incomplete cache is written
    again, with a warning to the logger "fedjax_het"; a second process waits for the first.

    Args:
        name: The name of the data set.
        items: What `read` decodes; items that are tuples are named by their first entry in messages.
        read: item -> rows of the arrays; it runs in threads.
        files: The files that `read` reads.
        options: All other settings that the result of `read` depends on.
        cache: The folder of the caches; None: the user's cache folder.

    Raises:
        InputError: `read` raises it, rows differ in shape, or the cache cannot be written.
    """
    root = Path(cache).expanduser() if cache else cache_folder() / "data"
    with report_write_errors(root):
        root.mkdir(parents=True, exist_ok=True)
    folder = root / f"{re.sub(r'[^A-Za-z0-9_.-]+', '_', name)}-{_compute_key(files, options)}"
    if (arrays := _open_cached(folder)) is not None:
        return arrays
    size, channels = options.get("size"), options.get("channels")
    check_space(min(len(items), _WORKERS), size, channels, host_memory(), "this machine's memory")
    check_space(len(items), size, channels, shutil.disk_usage(root).free, str(root))
    with _write_lock(folder.with_name(f"{folder.name}.partial")) as partial:
        if (arrays := _open_cached(folder)) is not None:
            return arrays
        _write_arrays(partial, items, read, options)
        with report_write_errors(folder):
            shutil.rmtree(folder, ignore_errors=True)
            partial.rename(folder)
    return open_arrays(folder)


def _compute_key(files: Sequence[str | Path], options: Mapping[str, Any]) -> str:
    paths = [str(file) for file in files]
    folder = os.path.commonpath([os.path.dirname(path) for path in paths])
    digest = hashlib.sha256(json.dumps({"format": _FORMAT, **options}, sort_keys=True).encode())
    for path in paths:
        try:
            status = os.stat(path)
        except OSError as error:
            raise InputError(f"cannot read {path}: {error.strerror}. Restore it.") from error
        check_regular(path, status.st_mode)
        digest.update(os.fsencode(f"{path[len(folder) :]}\0{status.st_size}\0{status.st_mtime_ns}\n"))
    return digest.hexdigest()[:16]


def _open_cached(folder: Path) -> dict[str, np.memmap] | None:
    with report_write_errors(folder):
        if not folder.exists():
            return None
    try:
        return open_arrays(folder)
    except DamagedArraysError as error:
        _LOG.warning("the cache %s is damaged and is written again: %s", folder, error)
        return None


def _write_arrays(
    folder: Path, items: Sequence[Item], read: Callable[[Item], Chunk], options: Mapping[str, Any]
) -> None:
    writer, last_message = GrowableNpyWriter(folder), time.monotonic()
    for i, (item, chunk) in enumerate(zip(items, map_in_order(read, items), strict=True)):
        with report_write_errors(folder):
            writer.append(str(item[0] if isinstance(item, tuple) else item), chunk)
        if time.monotonic() - last_message > _LOG_INTERVAL:
            last_message = time.monotonic()
            _LOG.info("decoded %d of %d into %s", i + 1, len(items), folder)
    with report_write_errors(folder):
        writer.seal(options)


def map_in_order(function: Callable, items: Sequence) -> Iterator:
    """function(item) for every item, in threads, in the order of the items; few items are ahead of the consumer."""
    with ThreadPoolExecutor(_WORKERS) as pool:
        pending = deque()
        for item in items:
            pending.append(pool.submit(function, item))
            if len(pending) > 2 * _WORKERS:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()


@contextmanager
def _write_lock(partial: Path) -> Iterator[Path]:
    """Create and lock an empty folder, which is removed afterwards unless it was renamed.

    The lock is on the folder itself, so that a process that is killed leaves no lock, only files to remove.
    """
    while True:
        with report_write_errors(partial):
            handle = _open_folder(partial)
        if handle is None:
            continue
        try:
            with report_write_errors(partial):
                _lock(handle, partial)
                # The last owner of the lock may have renamed or removed the folder that was opened here.
                if not _is_at(handle, partial):
                    continue
                for leftover in partial.iterdir():
                    _LOG.warning("%s is incomplete and is written again", leftover)
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
    """Create and open a folder; None where another process has just renamed or removed it.

    Not mkdir(exist_ok=True), which looks at what exists a moment later, and fails where that is gone by then.
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
    import fcntl  # exists on POSIX only, and the package must be importable elsewhere

    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        _LOG.info("another process writes %s: waiting for it", partial)
        fcntl.flock(handle, fcntl.LOCK_EX)

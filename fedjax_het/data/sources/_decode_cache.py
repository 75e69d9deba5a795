"""Cache of decoded examples: memory-mapped arrays in a folder that is written atomically."""

import hashlib
import json
import logging
import os
import re
import shutil
import time
import uuid
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import IO, Any, TypeVar

import numpy as np

from fedjax_het._internal import atomic
from fedjax_het._internal.cache_folder import cache_folder
from fedjax_het._internal.machine_memory import host_memory
from fedjax_het._internal.regular_files import check_regular
from fedjax_het.data.sources._images import check_space
from fedjax_het.data.sources._io_errors import report_write_errors
from fedjax_het.data.sources._npy import map_npy
from fedjax_het.errors import InputError

Item = TypeVar("Item")
Chunk = Mapping[str, np.ndarray]
MANIFEST = "manifest.json"
_LOG = logging.getLogger("fedjax_het")
_FORMAT = 2  # cache format; folders with another format are not opened
_LOG_INTERVAL = 10.0  # seconds between progress messages
_ABANDONED = 3600.0  # seconds without writes after which a folder belongs to a killed process
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

    The arrays are stored in `cache` under <name>-<hash>. The hash covers the order, relative names, sizes and
    modification times of the files, and `options`. Contents are not hashed: reading all files would take as long as
    decoding them, and rewriting a file changes its modification time. The arrays are written to a temporary folder,
    which is renamed once complete. A cache with missing or truncated files is rewritten, with a warning to the logger
    "fedjax_het".

    Args:
        name: The name of the data set.
        items: The items for `read`; messages identify tuples by their first entry.
        read: item -> rows of the arrays; it runs in threads.
        files: The files that `read` reads.
        options: All other settings that the result of `read` depends on.
        cache: The folder of the caches; None: the user's cache folder.

    Raises:
        InputError: `read` raises InputError, rows differ in shape, or the cache cannot be written.
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
    partial = folder.with_name(f"{folder.name}.{uuid.uuid4().hex}.partial")
    try:
        with report_write_errors(partial):
            _remove_abandoned(folder)
            partial.mkdir()
            _write_arrays(partial, items, read, options)
            try:
                partial.rename(folder)
            except OSError:
                if not folder.is_dir():  # otherwise another process has written it meanwhile
                    raise
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    if (arrays := _open_cached(folder)) is None:
        raise InputError(f"cache: cannot read the decoded data in {folder}. Give another folder.")
    return arrays


def _compute_key(files: Sequence[str | Path], options: Mapping[str, Any]) -> str:
    paths = [str(file) for file in files]
    folder = os.path.commonpath([os.path.dirname(path) for path in paths])
    digest = hashlib.sha256(json.dumps({"format": _FORMAT, **options}, sort_keys=True).encode())
    for path in paths:
        try:
            status = os.stat(path)
            check_regular(path, status.st_mode)
        except OSError as error:
            raise InputError(f"cannot read {path}: {error.strerror}. Restore it.") from error
        digest.update(os.fsencode(f"{path[len(folder) :]}\0{status.st_size}\0{status.st_mtime_ns}\n"))
    return digest.hexdigest()[:16]


def _open_cached(folder: Path) -> dict[str, np.memmap] | None:
    """The arrays of a complete folder; None if there is none, or if it was damaged and therefore removed."""
    with report_write_errors(folder):
        if not folder.exists():
            return None
    try:
        names = json.loads((folder / MANIFEST).read_text())["arrays"]
        return {name: map_npy(folder / f"{name}.npy") for name in names}
    except (OSError, EOFError, ValueError, KeyError, TypeError) as error:
        _LOG.warning("the cache %s is damaged and is written again: %s", folder, error)
        shutil.rmtree(folder, ignore_errors=True)
        return None


def _remove_abandoned(folder: Path) -> None:
    for partial in folder.parent.glob(f"{folder.name}.*.partial"):
        with suppress(FileNotFoundError):  # it was renamed or removed meanwhile
            if time.time() - max(path.stat().st_mtime for path in (partial, *partial.iterdir())) > _ABANDONED:
                shutil.rmtree(partial, ignore_errors=True)


def _write_arrays(
    folder: Path, items: Sequence[Item], read: Callable[[Item], Chunk], options: Mapping[str, Any]
) -> None:
    files: dict[str, IO[bytes]] = {}
    heads: dict[str, np.ndarray] = {}  # of shape (0, ...), with the row shapes
    lengths, first, last_message = Counter(), "", time.monotonic()
    with ExitStack() as stack:
        for i, (item, chunk) in enumerate(zip(items, map_in_order(read, items), strict=True)):
            origin = str(item[0] if isinstance(item, tuple) else item)
            first = first or origin
            for name, rows in chunk.items():
                if name not in files:
                    files[name], heads[name] = stack.enter_context((folder / f"{name}.npy").open("wb")), rows[:0]
                    _write_header(files[name], heads[name], 0)
                if rows.shape[1:] != heads[name].shape[1:]:
                    raise InputError(_describe_difference(first, heads[name].shape[1:], origin, rows.shape[1:]))
                if rows.dtype != heads[name].dtype:
                    raise InputError(f"{first} holds {heads[name].dtype} and {origin} {rows.dtype}. Convert one.")
                files[name].write(rows.tobytes())
                lengths[name] += len(rows)
            if time.monotonic() - last_message > _LOG_INTERVAL:
                last_message = time.monotonic()
                _LOG.info("decoded %d of %d into %s", i + 1, len(items), folder)
        for name, file in files.items():
            _write_header(file, heads[name], lengths[name])
    for name in files:
        atomic.sync(folder / f"{name}.npy")
    atomic.write(folder / MANIFEST, json.dumps({"arrays": list(files), "about": options}, indent=2))


def _write_header(file: IO[bytes], rows: np.ndarray, length: int) -> None:
    """Write the header of an array with `length` rows; NumPy reserves room for any length."""
    file.seek(0)
    header = {"descr": rows.dtype.str, "fortran_order": False, "shape": (length, *rows.shape[1:])}
    np.lib.format.write_array_header_1_0(file, header)


def _describe_difference(first: str, shape: tuple[int, ...], second: str, other: tuple[int, ...]) -> str:
    if shape[2:] != other[2:]:
        grey, color = (first, second) if shape[2:] == (1,) else (second, first)
        return (
            f"{grey} is grey and {color} is in color. Give `channels`: 3 repeats grey in all three, 1 makes all grey."
        )
    return (
        f"{first} is {shape[1]} x {shape[0]} and {second} is {other[1]} x {other[0]} pixels. Give `size`, and all are "
        "resized to it."
    )


def map_in_order(function: Callable, items: Sequence) -> Iterator:
    """Yield function(item) in order, computed in threads that run only a few items ahead of the consumer."""
    with ThreadPoolExecutor(_WORKERS) as pool:
        pending = deque()
        for item in items:
            pending.append(pool.submit(function, item))
            if len(pending) > 2 * _WORKERS:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()

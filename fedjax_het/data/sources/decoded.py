"""Files are decoded once, on all cores; later runs find the arrays in the cache and map them into memory."""

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
from pathlib import Path
from typing import TypeVar

import numpy as np

from fedjax_het.cache import cache_folder
from fedjax_het.data.sources.growing import Damaged, Writer, open_arrays
from fedjax_het.data.sources.images import check_room
from fedjax_het.data.sources.reading import check_regular
from fedjax_het.data.sources.sole_writer import sole_writer, writing
from fedjax_het.errors import InputError
from fedjax_het.memory import host_memory

Item = TypeVar("Item")
Chunk = Mapping[str, np.ndarray]

_LOG = logging.getLogger("fedjax_het")
_FORMAT = 1  # of the cache; another number leaves what earlier versions wrote alone
_EVERY = 10.0  # seconds between two lines on how far it is
_WORKERS = min(16, os.cpu_count() or 1)


def decoded(
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
    folder = _root(cache) / f"{re.sub(r'[^A-Za-z0-9_.-]+', '_', name)}-{_key(files, options)}"
    if (arrays := _usable(folder)) is not None:
        return arrays
    asked = options.get("size"), options.get("channels")
    check_room(min(len(items), _WORKERS), *asked, host_memory(), "this machine's memory")
    check_room(len(items), *asked, shutil.disk_usage(folder.parent).free, str(folder.parent))
    with sole_writer(folder.with_name(f"{folder.name}.partial")) as partial:
        if (arrays := _usable(folder)) is not None:
            return arrays
        _write(partial, items, read, options)
        with writing(folder):
            shutil.rmtree(folder, ignore_errors=True)
            partial.rename(folder)
    return open_arrays(folder)


def in_order(function: Callable, items: Sequence) -> Iterator:
    """function(item) for every item, in threads, handed out in the order of the items; few are under way at a time."""
    with ThreadPoolExecutor(_WORKERS) as pool:
        waiting = deque()
        for item in items:
            waiting.append(pool.submit(function, item))
            if len(waiting) > 2 * _WORKERS:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


def _root(cache: str | None) -> Path:
    root = Path(cache).expanduser() if cache else cache_folder() / "data"
    with writing(root):
        root.mkdir(parents=True, exist_ok=True)
    return root


def _key(files: Sequence[str | Path], options: Mapping[str, object]) -> str:
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


def _usable(folder: Path) -> dict[str, np.memmap] | None:
    with writing(folder):
        if not folder.exists():
            return None
    try:
        return open_arrays(folder)
    except Damaged as error:
        _LOG.warning("the cache %s is damaged and is made anew: %s", folder, error)
        return None


def _write(folder: Path, items: Sequence[Item], read: Callable[[Item], Chunk], options: Mapping[str, object]) -> None:
    writer, told = Writer(folder), time.monotonic()
    for i, (item, chunk) in enumerate(zip(items, in_order(read, items), strict=True)):
        with writing(folder):
            writer.add(str(item[0] if isinstance(item, tuple) else item), chunk)
        if time.monotonic() - told > _EVERY:
            told = time.monotonic()
            _LOG.info("decoded %d of %d into %s", i + 1, len(items), folder)
    with writing(folder):
        writer.seal(options)

"""NumPy's .npy files, with validation of headers against file contents."""

import math
import threading
from pathlib import Path
from typing import IO

import numpy as np

from fedjax_het._internal.machine_memory import describe_bytes, host_memory

# NumPy parses a file's header with `ast`, whose recursion depth Python 3.11 counts for all threads together: two files
# opened at the same time may end in "SystemError: AST constructor recursion depth mismatch" (CPython gh-106905).
_HEADER_LOCK = threading.Lock()
_READERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}


def map_npy(path: str | Path) -> np.memmap:
    """Memory-map a .npy file, read-only. Raises OSError and ValueError."""
    with _HEADER_LOCK:
        with open(path, "rb") as file:
            check_header(file, Path(path).stat().st_size)
        return np.load(path, mmap_mode="r", allow_pickle=False)


def check_header(file: IO[bytes], size: int, *, is_read: bool = False) -> None:
    """Raise ValueError if the header of a .npy file declares more than `size` bytes, or more than fits in memory if
    the array `is_read`."""
    version = np.lib.format.read_magic(file)
    if version not in _READERS:
        return  # other versions are only for structured types, which examples never have
    shape, _, dtype = _READERS[version](file)
    announced, available = math.prod(shape) * dtype.itemsize, size - file.tell()
    if announced > available and not dtype.hasobject:
        raise ValueError(f"it announces an array of shape {shape}, {announced} bytes, and holds {max(0, available)}")
    if is_read and announced > (memory := host_memory()):
        raise ValueError(
            f"its array of shape {shape} takes {describe_bytes(announced)}, and this machine has "
            f"{describe_bytes(memory)}"
        )

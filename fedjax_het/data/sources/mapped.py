"""Arrays in .npy form: headers that are held against the bytes that are there, and memory-mapped files."""

import math
import threading
from pathlib import Path
from typing import BinaryIO

import numpy as np

from fedjax_het.memory import describe_bytes, host_memory

# NumPy parses a file's header with `ast`, which Python 3.11 counts the depth of for all threads in one place: two
# files opened at one moment may end in "SystemError: AST constructor recursion depth mismatch" (CPython gh-106905).
_HEADER = threading.Lock()
_READERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}


def mapped(path: str | Path) -> np.memmap:
    """The array of a .npy file, read-only, its bytes read where they are used. Raises OSError and ValueError."""
    with _HEADER:
        with open(path, "rb") as file:
            check_header(file, Path(path).stat().st_size)
        return np.load(path, mmap_mode="r", allow_pickle=False)


def check_header(file: BinaryIO, size: int, *, is_read: bool = False) -> None:
    """Raise ValueError where an array is announced that the bytes cannot hold.

    Args:
        file: The beginning of a .npy file.
        size: Its length in bytes.
        is_read: Whether the array is to be read into memory, which it must fit in.
    """
    version = np.lib.format.read_magic(file)
    if version not in _READERS:
        return  # NumPy writes others for names of fields alone, which no array of examples has
    shape, _, dtype = _READERS[version](file)
    announced, there = math.prod(shape) * dtype.itemsize, size - file.tell()
    if announced > there and not dtype.hasobject:
        raise ValueError(f"it announces an array of shape {shape}, {announced} bytes, and holds {max(0, there)}")
    if is_read and announced > (room := host_memory()):
        raise ValueError(
            f"its array of shape {shape} takes {describe_bytes(announced)}, and this machine has {describe_bytes(room)}"
        )

"""A .npy file as a memory-mapped array, from any thread."""

import threading
from pathlib import Path

import numpy as np

# NumPy parses a file's header with `ast`, which Python 3.11 counts the depth of for all threads in one place: two
# files opened at one moment may end in "SystemError: AST constructor recursion depth mismatch" (CPython gh-106905).
_HEADER = threading.Lock()


def mapped(path: str | Path) -> np.memmap:
    """The array of a .npy file, read-only, its bytes read where they are used. Raises OSError and ValueError."""
    with _HEADER:
        return np.load(path, mmap_mode="r", allow_pickle=False)

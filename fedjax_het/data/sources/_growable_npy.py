"""Folders of .npy arrays that are written row by row, sealed with checksums, and memory-mapped."""

import io
import json
import math
import threading
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np

from fedjax_het._internal.machine_memory import describe_bytes, host_memory
from fedjax_het.errors import InputError

MANIFEST = "manifest.json"
_BLOCK = 1 << 24  # bytes whose checksum is computed at a time
# NumPy parses a file's header with `ast`, whose recursion depth Python 3.11 counts for all threads together: two files
# opened at the same time may end in "SystemError: AST constructor recursion depth mismatch" (CPython gh-106905).
_HEADER_LOCK = threading.Lock()
_READERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}


class DamagedArraysError(Exception):
    """A folder of arrays is incomplete, or was changed after it was sealed."""


def map_npy(path: str | Path) -> np.memmap:
    """Memory-map a .npy file, read-only. Raises OSError and ValueError."""
    with _HEADER_LOCK:
        with open(path, "rb") as file:
            check_header(file, Path(path).stat().st_size)
        return np.load(path, mmap_mode="r", allow_pickle=False)


def check_header(file: IO[bytes], size: int, *, is_read: bool = False) -> None:
    """Raise ValueError where the header of a .npy file of `size` bytes announces more than these, or than the memory
    can hold if the array `is_read`."""
    version = np.lib.format.read_magic(file)
    if version not in _READERS:
        return  # NumPy writes others for structured types only, which no array of examples has
    shape, _, dtype = _READERS[version](file)
    announced, available = math.prod(shape) * dtype.itemsize, size - file.tell()
    if announced > available and not dtype.hasobject:
        raise ValueError(f"it announces an array of shape {shape}, {announced} bytes, and holds {max(0, available)}")
    if is_read and announced > (memory := host_memory()):
        raise ValueError(
            f"its array of shape {shape} takes {describe_bytes(announced)}, and this machine has "
            f"{describe_bytes(memory)}"
        )


class _GrowableFile:
    """A .npy file that grows: NumPy's header has room for any length, so that it can be written again at the end."""

    def __init__(self, path: Path, rows: np.ndarray):
        self.dtype, self.tail, self.length, self.crc = rows.dtype, rows.shape[1:], 0, 0
        self._file = path.open("wb")
        self._write_header()

    def _write_header(self) -> None:
        header = {"descr": self.dtype.str, "fortran_order": False, "shape": (self.length, *self.tail)}
        buffer = io.BytesIO()
        np.lib.format.write_array_header_1_0(buffer, header)
        self._file.write(buffer.getvalue())

    def append(self, rows: np.ndarray) -> None:
        data = np.ascontiguousarray(rows).tobytes()
        self._file.write(data)
        self.crc, self.length = zlib.crc32(data, self.crc), self.length + len(rows)

    def close(self) -> dict[str, Any]:
        """Close the file; returns its entry in the manifest."""
        self._file.seek(0)
        self._write_header()
        self._file.close()
        return {"shape": [self.length, *self.tail], "dtype": str(self.dtype), "crc32": self.crc}


class GrowableNpyWriter:
    """Writes a folder of arrays: `append` chunks of rows, then `seal`."""

    def __init__(self, folder: Path):
        self._folder = folder
        self._files: dict[str, _GrowableFile] = {}
        self._first = ""

    def append(self, origin: str, chunk: Mapping[str, np.ndarray]) -> None:
        """Append {"inputs": [k, ...], ...}, k the same for all; raises InputError for rows of another form."""
        if not self._files:
            self._first = origin
            self._files = {name: _GrowableFile(self._folder / f"{name}.npy", rows) for name, rows in chunk.items()}
        for name, rows in chunk.items():
            file = self._files[name]
            if rows.shape[1:] != file.tail:
                raise InputError(_describe_difference(self._first, file.tail, origin, rows.shape[1:]))
            if rows.dtype != file.dtype:
                raise InputError(f"{self._first} holds {file.dtype} and {origin} {rows.dtype}. Convert one.")
            file.append(rows)

    def seal(self, about: Mapping[str, Any]) -> None:
        """Write the manifest; `about` is a note on the arrays for its readers."""
        arrays = {name: file.close() for name, file in self._files.items()}
        (self._folder / MANIFEST).write_text(json.dumps({"arrays": arrays, "about": about}, indent=2))


def _describe_difference(first: str, one: tuple[int, ...], second: str, other: tuple[int, ...]) -> str:
    if one[2:] != other[2:]:
        grey, color = (first, second) if one[2:] == (1,) else (second, first)
        return (
            f"{grey} is grey and {color} is in color. Give `channels`: 3 repeats grey in all three, 1 makes all grey."
        )
    return (
        f"{first} is {one[1]} x {one[0]} and {second} is {other[1]} x {other[0]} pixels. Give `size`, and all are "
        "resized to it."
    )


def open_arrays(folder: Path) -> dict[str, np.memmap]:
    """Memory-map the arrays of a sealed folder, read-only, after a check of all bytes. Raises DamagedArraysError."""
    try:
        manifest = json.loads((folder / MANIFEST).read_text())
        return {name: _open_checked(folder / f"{name}.npy", about) for name, about in manifest["arrays"].items()}
    except FileNotFoundError as error:
        raise DamagedArraysError(f"{error.filename} is missing") from error
    except (OSError, EOFError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise DamagedArraysError(str(error)) from error


def _open_checked(path: Path, about: Mapping[str, Any]) -> np.memmap:
    array = map_npy(path)
    if (list(array.shape), str(array.dtype)) != (about["shape"], about["dtype"]):
        raise DamagedArraysError(
            f"{path} holds {array.dtype} {array.shape}, not {about['dtype']} {tuple(about['shape'])}"
        )
    flat, crc = array.reshape(-1).view(np.uint8), 0
    for start in range(0, flat.size, _BLOCK):
        crc = zlib.crc32(flat[start : start + _BLOCK].data, crc)
    if crc != about["crc32"]:
        raise DamagedArraysError(f"{path} has another checksum than when it was written")
    return array

"""Arrays in .npy form: headers that are held against the bytes that are there, and memory-mapped files."""

import io
import json
import math
import threading
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO

import numpy as np

from fedjax_het._internal.machine_memory import describe_bytes, host_memory
from fedjax_het.errors import InputError

# NumPy parses a file's header with `ast`, which Python 3.11 counts the depth of for all threads in one place: two
# files opened at one moment may end in "SystemError: AST constructor recursion depth mismatch" (CPython gh-106905).
_HEADER_LOCK = threading.Lock()
_READERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}


def map_npy(path: str | Path) -> np.memmap:
    """The array of a .npy file, read-only, its bytes read where they are used. Raises OSError and ValueError."""
    with _HEADER_LOCK:
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


MANIFEST = "manifest.json"
_BLOCK = 1 << 24  # bytes that are checked at one time


class DamagedArraysError(Exception):
    """Why a folder of arrays cannot be used."""


class _GrowableFile:
    """One .npy file: its header has room for any length, so that it can be written again at the end."""

    def __init__(self, path: Path, rows: np.ndarray):
        self.dtype, self.tail, self.length, self.crc = rows.dtype, rows.shape[1:], 0, 0
        self._file = path.open("wb")
        self._file.write(self._header())

    def _header(self) -> bytes:
        about = {"descr": self.dtype.str, "fortran_order": False, "shape": (self.length, *self.tail)}
        buffer = io.BytesIO()
        np.lib.format.write_array_header_1_0(buffer, about)
        return buffer.getvalue()

    def add(self, rows: np.ndarray) -> None:
        data = np.ascontiguousarray(rows).tobytes()
        self._file.write(data)
        self.crc, self.length = zlib.crc32(data, self.crc), self.length + len(rows)

    def close(self) -> dict[str, object]:
        """What the manifest says of it."""
        self._file.seek(0)
        self._file.write(self._header())
        self._file.close()
        return {"shape": [self.length, *self.tail], "dtype": str(self.dtype), "crc32": self.crc}


class GrowableNpyWriter:
    """`add` chunks of rows, then `seal`: a folder without its seal, or changed after it, is Damaged."""

    def __init__(self, folder: Path):
        self._folder = folder
        self._arrays: dict[str, _GrowableFile] = {}
        self._first = ""

    def add(self, origin: str, chunk: Mapping[str, np.ndarray]) -> None:
        """{"inputs": [k, ...], ...}, k the same for all. Raises InputError where rows differ in shape or type."""
        if not self._arrays:
            self._first = origin
            self._arrays = {name: _GrowableFile(self._folder / f"{name}.npy", rows) for name, rows in chunk.items()}
        for name, rows in chunk.items():
            growing = self._arrays[name]
            if rows.shape[1:] != growing.tail:
                raise InputError(_describe_difference(self._first, growing.tail, origin, rows.shape[1:]))
            if rows.dtype != growing.dtype:
                raise InputError(f"{self._first} holds {growing.dtype} and {origin} {rows.dtype}. Convert one.")
            growing.add(rows)

    def seal(self, about: Mapping[str, object]) -> None:
        """`about` is kept with the arrays for whoever wonders what they are."""
        arrays = {name: growing.close() for name, growing in self._arrays.items()}
        (self._folder / MANIFEST).write_text(json.dumps({"arrays": arrays, "about": about}, indent=2))


def _describe_difference(first: str, one: tuple[int, ...], second: str, other: tuple[int, ...]) -> str:
    if one[2:] != other[2:]:
        grey, colour = (first, second) if one[2:] == (1,) else (second, first)
        return (
            f"{grey} is grey and {colour} is in colour. Give `channels`: 3 repeats grey in all three, 1 makes all grey."
        )
    return (
        f"{first} is {one[1]} x {one[0]} and {second} is {other[1]} x {other[0]} pixels. Give `size`, and all are "
        "resized to it."
    )


def open_arrays(folder: Path) -> dict[str, np.memmap]:
    """The arrays of a sealed folder, memory-mapped and read-only, every byte checked. Raises Damaged."""
    try:
        manifest = json.loads((folder / MANIFEST).read_text())
        return {name: _open_checked(folder / f"{name}.npy", about) for name, about in manifest["arrays"].items()}
    except FileNotFoundError as error:
        raise DamagedArraysError(f"{error.filename} is missing") from error
    except (OSError, EOFError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise DamagedArraysError(str(error)) from error


def _open_checked(path: Path, about: Mapping[str, object]) -> np.memmap:
    array = map_npy(path)
    if (list(array.shape), str(array.dtype)) != (about["shape"], about["dtype"]):
        raise DamagedArraysError(
            f"{path} holds {array.dtype} {array.shape}, not {about['dtype']} {tuple(about['shape'])}"
        )
    flat, crc = array.reshape(-1).view(np.uint8), 0
    for start in range(0, flat.size, _BLOCK):
        crc = zlib.crc32(flat[start : start + _BLOCK], crc)
    if crc != about["crc32"]:
        raise DamagedArraysError(f"{path} has another checksum than when it was written")
    return array

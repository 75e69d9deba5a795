"""Records of one size, numbered from 0, in memory or in a file that grow as numbers are first written to."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np

_BLOCK = 1 << 26  # bytes that memory grows by


class MemoryRecords:
    """In blocks, so that what is there is never copied to make room."""

    def __init__(self, record: np.dtype):
        self._record, self._in_block, self._blocks = record, max(1, _BLOCK // record.itemsize), []

    def read(self, numbers: np.ndarray) -> np.ndarray:
        records = np.empty(len(numbers), self._record)
        for block, inside, chosen in self._parts(numbers):
            records[chosen] = block[inside]
        return records

    def write(self, numbers: np.ndarray, records: np.ndarray) -> None:
        for block, inside, chosen in self._parts(numbers):
            block[inside] = records[chosen]

    def _parts(self, numbers: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """(a block, places in it, which of the numbers these are)"""
        blocks, inside = np.divmod(numbers, self._in_block)
        for block in np.unique(blocks):
            while len(self._blocks) <= block:
                self._blocks.append(np.empty(self._in_block, self._record))
            chosen = np.flatnonzero(blocks == block)
            yield self._blocks[block], inside[chosen], chosen


class FileRecords:
    """In a file without a name, which is this process's alone and gone with it however it ends.

    It is read and written, not mapped: what is mapped counts as memory of the process, and every page is a fault.
    """

    def __init__(self, record: np.dtype, folder: Path):
        self._record = record
        self._file = tempfile.TemporaryFile(dir=nearest_existing_folder(folder))  # noqa: SIM115

    def read(self, numbers: np.ndarray) -> np.ndarray:
        records = np.empty(len(numbers), self._record)
        for content in self._places(numbers, records):
            self._file.readinto(content)
        return records

    def write(self, numbers: np.ndarray, records: np.ndarray) -> None:
        for content in self._places(numbers, records):
            self._file.write(content)
        self._file.flush()

    def _places(self, numbers: np.ndarray, records: np.ndarray) -> Iterator[np.ndarray]:
        """The bytes of one record after the other, the file being where they belong."""
        size = self._record.itemsize
        for number, content in zip(numbers.tolist(), records.view(np.uint8).reshape(-1, size), strict=True):
            self._file.seek(number * size)
            yield content


def nearest_existing_folder(folder: Path) -> Path:
    """The folder, or what there is of its parents."""
    return next(place for place in (folder, *folder.absolute().parents) if place.exists())

"""Numbered records of equal size, in memory or in a file, which grow when a new number is first written."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np

_BLOCK = 1 << 26  # bytes that memory grows by


class MemoryRecords:
    """Records in memory, in blocks, so growth does not copy records."""

    def __init__(self, record: np.dtype):
        self._record, self._block_size, self._blocks = record, max(1, _BLOCK // record.itemsize), []

    def read(self, numbers: np.ndarray) -> np.ndarray:
        records = np.empty(len(numbers), self._record)
        for block, inside, selected in self._split_by_block(numbers):
            records[selected] = block[inside]
        return records

    def write(self, numbers: np.ndarray, records: np.ndarray) -> None:
        for block, inside, selected in self._split_by_block(numbers):
            block[inside] = records[selected]

    def _split_by_block(self, numbers: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """Yield (a block, positions in it, positions of their numbers in `numbers`)."""
        blocks, inside = np.divmod(numbers, self._block_size)
        for block in np.unique(blocks):
            while len(self._blocks) <= block:
                self._blocks.append(np.empty(self._block_size, self._record))
            selected = np.flatnonzero(blocks == block)
            yield self._blocks[block], inside[selected], selected


class FileRecords:
    """Records in an unnamed temporary file, which disappears with this process in any case.

    The file is read and written, not mapped: mapped pages count as process memory, and each costs a page fault.
    """

    def __init__(self, record: np.dtype, folder: Path):
        self._record = record
        self._file = tempfile.TemporaryFile(dir=nearest_existing_folder(folder))  # noqa: SIM115

    def read(self, numbers: np.ndarray) -> np.ndarray:
        records = np.empty(len(numbers), self._record)
        for content in self._seek_each(numbers, records):
            self._file.readinto(content.data)
        return records

    def write(self, numbers: np.ndarray, records: np.ndarray) -> None:
        for content in self._seek_each(numbers, records):
            self._file.write(content.data)
        self._file.flush()

    def _seek_each(self, numbers: np.ndarray, records: np.ndarray) -> Iterator[np.ndarray]:
        """Yield the bytes of each record, with the file positioned at that record."""
        size = self._record.itemsize
        for number, content in zip(numbers.tolist(), records.view(np.uint8).reshape(-1, size), strict=True):
            self._file.seek(number * size)
            yield content


def nearest_existing_folder(folder: Path) -> Path:
    """The folder, or its nearest existing parent."""
    return next(place for place in (folder, *folder.absolute().parents) if place.exists())

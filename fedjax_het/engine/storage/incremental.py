"""Incremental checkpoints of a client store: each one writes the states that have changed since the last.

The states of a checkpoint are a list of segments, files that are written once; records of later segments replace those
of earlier ones. If the list would contain more than twice as many records as there are clients with records, a single
segment with all of them is written. Time and disk space of checkpoints thus stay proportional to the changes.
"""

import os
import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TypedDict

import numpy as np

from fedjax_het._internal.atomic import sync
from fedjax_het._internal.regular_files import open_regular
from fedjax_het.engine.storage.checksums import crc32_of
from fedjax_het.engine.storage.client_store import ClientStore

_BUFFER_SIZE = 1 << 26  # bytes in memory besides the store


class CheckpointSegment(TypedDict):
    """A file of records, as listed in a checkpoint."""

    file: str
    num_records: int
    checksum: int


class IncrementalCheckpoint:
    """A folder of segments."""

    def __init__(self, folder: Path):
        self._folder = folder

    def write(self, round: int, store: ClientStore) -> list[CheckpointSegment]:
        """Write the changes in a store since the last call, and wait until they are on disk.

        Args:
            round: The number of completed rounds.
            store: The client states.

        Returns:
            The segments for `read`, in order.
        """
        segments, rounds = store.last_checkpoint.get(self._folder, ([], 0))
        chosen = store.rounds != rounds
        if sum(segment["num_records"] for segment in segments) + chosen.sum() > 2 * np.count_nonzero(store.rounds):
            segments, chosen = [], store.rounds > 0
        if chosen.any():
            segments = [*segments, self._write_segment(round, store, *np.nonzero(chosen))]
        store.last_checkpoint[self._folder] = segments, store.rounds.copy()
        return segments

    def _write_segment(
        self, round: int, store: ClientStore, seeds: np.ndarray, clients: np.ndarray
    ) -> CheckpointSegment:
        self._folder.mkdir(exist_ok=True)
        temporary, checksum = self._folder / ".partial", 0
        with temporary.open("wb") as file:
            for part in np.array_split(
                np.arange(len(seeds)), -(-len(seeds) * store.record_dtype.itemsize // _BUFFER_SIZE)
            ):
                content = store.to_records(seeds[part], clients[part]).view(np.uint8)
                checksum = zlib.crc32(content.data, checksum)
                file.write(content.data)
            file.flush()
            os.fsync(file.fileno())
        name = f"{round}-{checksum:08x}"
        os.replace(temporary, self._folder / name)
        sync(self._folder)
        return CheckpointSegment(file=name, num_records=len(seeds), checksum=checksum)

    def read(self, segments: list[CheckpointSegment], store: ClientStore) -> None:
        """Restore a store.

        Args:
            segments: The result of `write`.
            store: The store whose states are replaced.

        Raises:
            OSError: A file is missing or damaged.
        """
        store.rounds[:] = 0
        for segment in segments:
            path, checksum, size = self._folder / segment["file"], 0, store.record_dtype.itemsize
            if path.stat().st_size != segment["num_records"] * size:
                raise OSError(f"{path} is truncated")
            with open_regular(path) as file:
                while content := file.read(max(1, _BUFFER_SIZE // size) * size):
                    checksum = zlib.crc32(content, checksum)
                    store.load_records(np.frombuffer(content, store.record_dtype))
            if checksum != segment["checksum"]:
                raise OSError(f"{path} is damaged")
        store.last_checkpoint[self._folder] = segments, store.rounds.copy()

    def find_damage(self, segments: Sequence[CheckpointSegment], is_thorough: bool) -> str | None:
        """Look for missing files and, if `is_thorough`, for files that differ from their checksums.

        Returns:
            A description of the first damaged segment; None if all are intact.
        """
        for segment in segments:
            path = self._folder / segment["file"]
            if not path.is_file():
                return f"{path} is missing"
            if is_thorough and crc32_of(path) != segment["checksum"]:
                return f"the checksum of {path} does not match"
        return None

    def prune(self, segments: Iterable[CheckpointSegment]) -> None:
        """Delete all files except these segments, which are those of the remaining checkpoints."""
        known = {segment["file"] for segment in segments}
        for path in self._folder.glob("*"):
            if path.name not in known:
                path.unlink()

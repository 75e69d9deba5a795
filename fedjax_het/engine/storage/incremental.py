"""A client store on the disk: each checkpoint writes the states that have changed since the one before.

A checkpoint's states are a list of segments, files that are written once; records of later ones replace those of
earlier ones. Where the list would come to more than twice the records that there are, one segment is written with them
all: so what checkpoints write and occupy stays in proportion to what changes.
"""

import os
import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TypedDict

import numpy as np

from fedjax_het._internal.atomic import sync
from fedjax_het.engine.storage.checksums import crc32_of
from fedjax_het.engine.storage.client_store import ClientStore

_AT_A_TIME = 1 << 26  # bytes that are in memory besides the store


class CheckpointSegment(TypedDict):
    file: str
    num_records: int
    checksum: int


class IncrementalCheckpoint:
    """A folder of segments."""

    def __init__(self, folder: Path):
        self._folder = folder

    def write(self, round: int, store: ClientStore) -> list[CheckpointSegment]:
        """What is to be read to have this store again, in order; it is on the disk when this returns."""
        listed, rounds = store.kept_in.get(self._folder, ([], 0))
        chosen = store.rounds != rounds
        if sum(each["num_records"] for each in listed) + chosen.sum() > 2 * np.count_nonzero(store.rounds):
            listed, chosen = [], store.rounds > 0
        if chosen.any():
            listed = [*listed, self._written(round, store, *np.nonzero(chosen))]
        store.kept_in[self._folder] = listed, store.rounds.copy()
        return listed

    def _written(self, round: int, store: ClientStore, seeds: np.ndarray, clients: np.ndarray) -> CheckpointSegment:
        self._folder.mkdir(exist_ok=True)
        temporary, checksum = self._folder / ".partial", 0
        with temporary.open("wb") as file:
            for part in np.array_split(np.arange(len(seeds)), -(-len(seeds) * store.entry.itemsize // _AT_A_TIME)):
                content = store.entries(seeds[part], clients[part]).view(np.uint8)
                checksum = zlib.crc32(content, checksum)
                file.write(content)
            file.flush()
            os.fsync(file.fileno())
        name = f"{round}-{checksum:08x}"
        os.replace(temporary, self._folder / name)
        sync(self._folder)
        return CheckpointSegment(file=name, num_records=len(seeds), checksum=checksum)

    def read(self, listed: list[CheckpointSegment], store: ClientStore) -> None:
        """Bring a store to where it was when this was listed. Raises OSError for what is missing or damaged."""
        store.rounds[:] = 0
        for each in listed:
            path, checksum, size = self._folder / each["file"], 0, store.entry.itemsize
            if path.stat().st_size != each["num_records"] * size:
                raise OSError(f"{path} is cut short")
            with path.open("rb") as file:
                while content := file.read(max(1, _AT_A_TIME // size) * size):
                    checksum = zlib.crc32(content, checksum)
                    store.load(np.frombuffer(content, store.entry))
            if checksum != each["checksum"]:
                raise OSError(f"{path} is damaged")
        store.kept_in[self._folder] = listed, store.rounds.copy()

    def find_damage(self, listed: Sequence[CheckpointSegment], is_thorough: bool) -> str | None:
        """What is wrong with the first of these that is missing or, if is_thorough, differs from its checksum."""
        for each in listed:
            path = self._folder / each["file"]
            if not path.is_file():
                return f"{path} is missing"
            if is_thorough and crc32_of(path) != each["checksum"]:
                return f"{path} has another checksum than when it was written"
        return None

    def prune(self, listed: Iterable[CheckpointSegment]) -> None:
        """Delete what is not listed here, by any checkpoint that stays."""
        known = {each["file"] for each in listed}
        for path in self._folder.glob("*"):
            if path.name not in known:
                path.unlink()

"""Client states in host memory or on disk: a record a client, touched only when the client takes part."""

import math
import mmap
import tempfile
from collections.abc import Iterator
from pathlib import Path

import jax
import numpy as np
from jax import ShapeDtypeStruct

from fedjax_het.types import ClientState


class ClientStore:
    """What stands in `State.clients` where the states of all clients do not lie on the device.

    A client that has not reported in any round has its first state, which all share: its record is a hole that takes
    neither memory nor disk. A file belongs to this process alone, and is gone with it however it ends.
    """

    def __init__(self, first: ClientState, num_clients: int, folder: Path | None):
        """first: what every client starts with, leaves [seeds, ...].   folder: where to keep a file; None is memory."""
        leaves, self._structure = jax.tree.flatten((first.personal, first.memory))
        self._record = np.dtype([(str(i), leaf.dtype, leaf.shape[1:]) for i, leaf in enumerate(leaves)])
        self._first = self._packed([np.asarray(leaf) for leaf in leaves], first.rounds.shape)
        self.rounds = np.zeros((*first.rounds.shape, num_clients), np.int32)  # [seeds, clients]
        if not self._record.itemsize:
            self._records = np.zeros(self.rounds.shape, self._record)
        elif folder is None:
            self._records = _holes(self._record, self.rounds.shape)
        else:
            self._records = _File(self._record, num_clients, folder)
        self.kept_in: dict[Path, tuple[list, np.ndarray]] = {}  # what a folder of `Segments` has, as of which rounds

    def take(self, ids: np.ndarray) -> ClientState:
        """The states of these clients: ids [seeds, n] -> leaves [seeds, n, ...]."""
        seeds = np.broadcast_to(np.arange(len(ids))[:, None], ids.shape)
        records, rounds = self._taken(seeds, ids)
        personal, memory = self._structure.unflatten([records[name] for name in self._record.names or ()])
        return ClientState(personal, memory, rounds)

    def put(self, ids: np.ndarray, clients: ClientState) -> None:
        """Replace the states of these clients, leaves [seeds, n, ...]. Who has not reported has not changed."""
        rounds = np.asarray(clients.rounds)
        seeds, places = np.nonzero(rounds != np.take_along_axis(self.rounds, ids, axis=1))
        leaves = [np.asarray(leaf)[seeds, places] for leaf in jax.tree.leaves((clients.personal, clients.memory))]
        chosen = seeds, ids[seeds, places]
        self._records[chosen], self.rounds[chosen] = self._packed(leaves, seeds.shape), rounds[seeds, places]

    def everyone(self) -> ClientState:
        """All states, leaves [seeds, clients, ...], as a State has them where they lie on the device."""
        return self.take(np.broadcast_to(np.arange(self.rounds.shape[1]), self.rounds.shape))

    @property
    def shapes(self) -> ClientState:
        """Of `everyone`."""
        fields = [self._record[name] for name in self._record.names or ()]
        shapes = [ShapeDtypeStruct(self.rounds.shape + field.shape, field.base) for field in fields]
        return ClientState(*self._structure.unflatten(shapes), ShapeDtypeStruct(self.rounds.shape, np.int32))

    # ---- as entries of a file ----------------------------------------------------------------------------------------
    @property
    def entry(self) -> np.dtype:
        """Whose state it is, and the state."""
        return np.dtype([("seed", "<i4"), ("client", "<i4"), ("rounds", "<i4"), ("record", self._record)])

    def entries(self, seeds: np.ndarray, clients: np.ndarray) -> np.ndarray:
        """[n], of these clients of these seeds."""
        entries = np.empty(len(seeds), self.entry)
        entries["seed"], entries["client"] = seeds, clients
        entries["record"], entries["rounds"] = self._taken(seeds, clients)
        return entries

    def load(self, entries: np.ndarray) -> None:
        """Replace the states of those whom the entries name."""
        chosen = entries["seed"], entries["client"]
        self._records[chosen], self.rounds[chosen] = entries["record"], entries["rounds"]

    def _taken(self, seeds: np.ndarray, clients: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        rounds = self.rounds[seeds, clients]
        records, is_first = np.empty(rounds.shape, self._record), rounds == 0
        records[is_first] = self._first[seeds[is_first]]
        records[~is_first] = self._records[seeds[~is_first], clients[~is_first]]
        return records, rounds

    def _packed(self, leaves: list[np.ndarray], shape: tuple[int, ...]) -> np.ndarray:
        records = np.empty(shape, self._record)
        for name, leaf in zip(self._record.names or (), leaves, strict=True):
            records[name] = leaf
        return records


def _holes(record: np.dtype, shape: tuple[int, ...]) -> np.ndarray:
    """Memory that is there once it is written to, page by page."""
    size = math.prod(shape) * record.itemsize
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_NOHUGEPAGE"):
        memory.madvise(mmap.MADV_NOHUGEPAGE)  # else a record of a few kB may take two MB
    return np.frombuffer(memory, record).reshape(shape)


class _File:
    """Records in a file, indexed as an array [seeds, clients] of them by two arrays of one axis.

    Read and written, not mapped: what is mapped counts as this process's memory, and every page is a fault.
    """

    def __init__(self, record: np.dtype, num_clients: int, folder: Path):
        self._record, self._num_clients = record, num_clients
        self._file = tempfile.TemporaryFile(dir=existing(folder))  # noqa: SIM115 (without a name, it ends with us)

    def __getitem__(self, chosen: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
        records = np.empty(len(chosen[0]), self._record)
        for part in self._each(chosen, records):
            self._file.readinto(part)
        return records

    def __setitem__(self, chosen: tuple[np.ndarray, np.ndarray], records: np.ndarray) -> None:
        for part in self._each(chosen, records):
            self._file.write(part)
        self._file.flush()

    def _each(self, chosen: tuple[np.ndarray, np.ndarray], records: np.ndarray) -> Iterator[np.ndarray]:
        """The bytes of one record after the other, with the file at its place."""
        places, size = chosen[0] * np.int64(self._num_clients) + chosen[1], self._record.itemsize
        for place, part in zip(places.tolist(), records.view(np.uint8).reshape(-1, size), strict=True):
            self._file.seek(place * size)
            yield part


def existing(folder: Path) -> Path:
    """The folder, or what there is of its parents."""
    return next(place for place in (folder, *folder.absolute().parents) if place.exists())

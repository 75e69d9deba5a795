"""Client states in host memory or on disk: a record a client, touched only when the client takes part."""

from pathlib import Path

import jax
import numpy as np
from jax import ShapeDtypeStruct

from fedjax_het.engine.storage.records import FileRecords, MemoryRecords
from fedjax_het.types import ClientState


class ClientStore:
    """What stands in `State.clients` where the states of all clients do not lie on the device.

    A client that has not reported in any round has its first state, which all share, and no record: it takes neither
    memory nor disk.
    """

    def __init__(self, first: ClientState, num_clients: int, folder: Path | None):
        """first: what every client starts with, leaves [seeds, ...].   folder: where to keep a file; None is memory."""
        leaves, self._structure = jax.tree.flatten((first.personal, first.memory))
        fields = [(str(i), leaf.dtype, leaf.shape[1:]) for i, leaf in enumerate(leaves)]
        self._names = [name for name, *_ in fields]
        self._record = np.dtype([*fields, ("", np.uint8)])  # never of no bytes
        self._raw = np.dtype((np.void, self._record.itemsize))  # moved as bytes, not field by field
        self._first = self._packed([np.asarray(leaf) for leaf in leaves], first.rounds.shape)
        self.rounds = np.zeros((*first.rounds.shape, num_clients), np.int32)  # [seeds, clients]
        self._numbers = np.full(self.rounds.shape, -1, np.int32)  # of their records; -1: they have none yet
        self._num_records = 0
        self._records = MemoryRecords(self._raw) if folder is None else FileRecords(self._raw, folder)
        self.kept_in: dict[Path, tuple[list, np.ndarray]] = {}  # what a folder of `Segments` has, as of which rounds

    def take(self, ids: np.ndarray) -> ClientState:
        """The states of these clients: ids [seeds, n] -> leaves [seeds, n, ...]."""
        seeds = np.broadcast_to(np.arange(len(ids))[:, None], ids.shape)
        records, rounds = self._taken(seeds, ids)
        personal, memory = self._structure.unflatten([records[name] for name in self._names])
        return ClientState(personal, memory, rounds)

    def put(self, ids: np.ndarray, clients: ClientState) -> None:
        """Replace the states of these clients, leaves [seeds, n, ...]. Who has not reported has not changed."""
        rounds = np.asarray(clients.rounds)
        seeds, places = np.nonzero(rounds != np.take_along_axis(self.rounds, ids, axis=1))
        leaves = [np.asarray(leaf)[seeds, places] for leaf in jax.tree.leaves((clients.personal, clients.memory))]
        chosen = seeds, ids[seeds, places]
        self._write(chosen, self._packed(leaves, seeds.shape), rounds[seeds, places])

    def everyone(self) -> ClientState:
        """All states, leaves [seeds, clients, ...], as a State has them where they lie on the device."""
        return self.take(np.broadcast_to(np.arange(self.rounds.shape[1]), self.rounds.shape))

    @property
    def shapes(self) -> ClientState:
        """Of `everyone`."""
        fields = [self._record[name] for name in self._names]
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
        self._write(chosen, np.ascontiguousarray(entries["record"]), entries["rounds"])

    def _taken(self, seeds: np.ndarray, clients: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        rounds = self.rounds[seeds, clients]
        records, is_first = np.empty(rounds.shape, self._record), rounds == 0
        raw = records.view(self._raw)
        raw[is_first] = self._first.view(self._raw)[seeds[is_first]]
        raw[~is_first] = self._records.read(self._numbers[seeds[~is_first], clients[~is_first]])
        return records, rounds

    def _write(self, chosen: tuple[np.ndarray, np.ndarray], records: np.ndarray, rounds: np.ndarray) -> None:
        numbers = self._numbers[chosen]
        is_new = numbers < 0
        numbers[is_new] = np.arange(self._num_records, self._num_records + is_new.sum())
        self._numbers[chosen], self.rounds[chosen] = numbers, rounds
        self._num_records += is_new.sum()
        self._records.write(numbers, records.view(self._raw))

    def _packed(self, leaves: list[np.ndarray], shape: tuple[int, ...]) -> np.ndarray:
        records = np.empty(shape, self._record)
        for name, leaf in zip(self._names, leaves, strict=True):
            records[name] = leaf
        return records

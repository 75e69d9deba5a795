"""Client states in host memory or on disk: one record per client, accessed only when the client takes part."""

from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax import ShapeDtypeStruct

from fedjax_het.engine.storage.records import FileRecords, MemoryRecords
from fedjax_het.types import ClientState, HostArray


class ClientStore:
    """The states of all clients off the device, in place of `State.clients`.

    A client that has never reported has the shared initial state and no record, so it takes neither memory nor disk
    space.
    """

    def __init__(self, first: ClientState, num_clients: int, folder: Path | None):
        """Start with the initial state for every client.

        Args:
            first: The initial state of any client, leaves [seeds, ...].
            num_clients: The number of clients.
            folder: The folder of the file with the states; None: in memory.
        """
        leaves, self._structure = jax.tree.flatten((first.personal, first.memory))
        fields = [(str(i), leaf.dtype, leaf.shape[1:]) for i, leaf in enumerate(leaves)]
        self._names = [name for name, *_ in fields]
        self._record = np.dtype([*fields, ("", np.uint8)])  # never empty
        self._raw = np.dtype((np.void, self._record.itemsize))  # moved as bytes, not field by field
        self._first = self._pack([np.asarray(leaf) for leaf in leaves], first.rounds.shape)
        self.rounds = np.zeros((*first.rounds.shape, num_clients), np.int32)  # [seeds, clients]
        self._slot_of_client = np.full(self.rounds.shape, -1, np.int32)  # record number; -1: no record yet
        self._num_slots = 0
        self._records = MemoryRecords(self._raw) if folder is None else FileRecords(self._raw, folder)
        # {folder of an IncrementalCheckpoint: (its segments, `rounds` when they were written)}
        self.last_checkpoint: dict[Path, tuple[list[Any], np.ndarray]] = {}

    def take(self, ids: HostArray) -> ClientState:
        """Read the states of the given clients.

        Args:
            ids: Client ids, [seeds, n].

        Returns:
            Their states, leaves [seeds, n, ...].
        """
        ids = np.asarray(ids)
        seeds = np.broadcast_to(np.arange(len(ids))[:, None], ids.shape)
        records, rounds = self._read(seeds, ids)
        personal, memory = self._structure.unflatten([records[name] for name in self._names])
        return ClientState(personal, memory, rounds)

    def put(self, ids: HostArray, clients: ClientState) -> None:
        """Replace the states of the given clients; clients that have not reported since keep their record.

        Args:
            ids: Client ids, [seeds, n].
            clients: Their states, leaves [seeds, n, ...].
        """
        ids, rounds = np.asarray(ids), np.asarray(clients.rounds)
        seeds, places = np.nonzero(rounds != np.take_along_axis(self.rounds, ids, axis=1))
        leaves = [np.asarray(leaf)[seeds, places] for leaf in jax.tree.leaves((clients.personal, clients.memory))]
        chosen = seeds, ids[seeds, places]
        self._write(chosen, self._pack(leaves, seeds.shape), rounds[seeds, places])

    def take_all(self) -> ClientState:
        """Read the states of all clients, leaves [seeds, clients, ...], as in a State on the device."""
        return self.take(np.broadcast_to(np.arange(self.rounds.shape[1]), self.rounds.shape))

    @property
    def shapes(self) -> ClientState:
        """The shapes of the states of all clients."""
        fields = [self._record[name] for name in self._names]
        shapes = [ShapeDtypeStruct(self.rounds.shape + field.shape, field.base) for field in fields]
        rounds = jax.eval_shape(lambda: self.rounds)
        personal, memory = self._structure.unflatten(shapes)
        return ClientState(personal, memory, rounds)

    # ---- records of a file ----------------------------------------------------------------------------------------
    @property
    def record_dtype(self) -> np.dtype:
        """The type of one record in a file: seed, client, rounds, and the client's state."""
        return np.dtype([("seed", "<i4"), ("client", "<i4"), ("rounds", "<i4"), ("record", self._record)])

    def to_records(self, seeds: np.ndarray, clients: np.ndarray) -> np.ndarray:
        """Pack the states of the given clients into records of `record_dtype`; seeds, clients and records are [n]."""
        records = np.empty(len(seeds), self.record_dtype)
        records["seed"], records["client"] = seeds, clients
        records["record"], records["rounds"] = self._read(seeds, clients)
        return records

    def load_records(self, records: np.ndarray) -> None:
        """Replace the states of the clients in the records."""
        chosen = records["seed"], records["client"]
        self._write(chosen, np.ascontiguousarray(records["record"]), records["rounds"])

    def _read(self, seeds: np.ndarray, clients: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        rounds = self.rounds[seeds, clients]
        records, is_first = np.empty(rounds.shape, self._record), rounds == 0
        raw = records.view(self._raw)
        raw[is_first] = self._first.view(self._raw)[seeds[is_first]]
        raw[~is_first] = self._records.read(self._slot_of_client[seeds[~is_first], clients[~is_first]])
        return records, rounds

    def _write(self, chosen: tuple[np.ndarray, np.ndarray], records: np.ndarray, rounds: np.ndarray) -> None:
        numbers = self._slot_of_client[chosen]
        is_new = numbers < 0
        numbers[is_new] = np.arange(self._num_slots, self._num_slots + is_new.sum())
        self._slot_of_client[chosen], self.rounds[chosen] = numbers, rounds
        self._num_slots += is_new.sum()
        self._records.write(numbers, records.view(self._raw))

    def _pack(self, leaves: list[np.ndarray], shape: tuple[int, ...]) -> np.ndarray:
        records = np.zeros(shape, self._record)  # also zero in the unnamed field, so equal states have equal bytes
        for name, leaf in zip(self._names, leaves, strict=True):
            records[name] = leaf
        return records

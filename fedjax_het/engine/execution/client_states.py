"""Client states during rounds: a cohort's states are read before its round and written back after it."""

from abc import ABC, abstractmethod

import jax
import numpy as np

from fedjax_het.engine.parallel.runs import Executable
from fedjax_het.engine.round.client_step import Cohort
from fedjax_het.engine.storage.client_store import ClientStore
from fedjax_het.types import ClientState, HostArray


class ClientStates(ABC):
    """The states of all clients between two rounds; leaves of a cohort's states are [runs, slots, ...]."""

    @abstractmethod
    def prefetch(self, cohort: Cohort) -> None:
        """Read what the next round needs from the host, while the current round runs."""

    @abstractmethod
    def take(self, ids: HostArray) -> ClientState:
        """The states of the next cohort, on the device."""

    @abstractmethod
    def put(self, ids: HostArray, clients: ClientState) -> None:
        """Replace the states of a cohort by the results of its round, without waiting for them."""

    @abstractmethod
    def finish(self) -> ClientState | ClientStore:
        """The states of all clients, as in `State.clients`."""


class DeviceStates(ClientStates):
    """Client states on the device; the programs are those of `RunPrograms.exchange`."""

    def __init__(self, clients: ClientState, gather: Executable | None = None, scatter: Executable | None = None):
        self._clients, self._gather, self._scatter = clients, gather, scatter

    def prefetch(self, cohort: Cohort) -> None:
        pass

    def take(self, ids: HostArray) -> ClientState:
        return self._gather(self._clients, ids) if self._gather else self._clients

    def put(self, ids: HostArray, clients: ClientState) -> None:
        self._clients = self._scatter(self._clients, ids, clients) if self._scatter else clients

    def finish(self) -> ClientState:
        return self._clients


class StoredStates(ClientStates):
    """Client states in a ClientStore.

    While a round runs, the states of the previous round are written to the store, and those of the next round are read
    from it. The states of a client that takes part in two successive rounds stay on the device.
    """

    def __init__(self, store: ClientStore, cohort_size: int, merge: Executable):
        self._store, self._merge, self._size = store, merge, cohort_size
        self._trained: list[tuple[HostArray, ClientState]] = []  # ids and states of rounds that are not in the store

    def prefetch(self, cohort: Cohort) -> None:
        self._write(1)
        positions = np.full(cohort.ids.shape, -1, np.int32)
        if self._trained:
            before = self._trained[0][0]
            positions = np.stack([_positions_among(*pair) for pair in zip(before, cohort.ids, strict=True)])
        self._read = positions, self._store.take(cohort.ids)

    def take(self, ids: HostArray) -> ClientState:
        positions, stored = self._read
        return self._merge(self._trained[0][1] if self._trained else stored, positions, stored)

    def put(self, ids: HostArray, clients: ClientState) -> None:
        self._trained.append((ids[:, : self._size], clients))

    def finish(self) -> ClientStore:
        self._write(0)
        return self._store

    def _write(self, num_kept: int) -> None:
        """Write the results of all rounds except the newest ones to the store, which waits for them."""
        while len(self._trained) > num_kept:
            ids, clients = self._trained.pop(0)
            self._store.put(ids, jax.tree.map(lambda x: np.asarray(x)[:, : self._size], clients))


def _positions_among(before: HostArray, ids: HostArray) -> np.ndarray:
    """The position of each id in `before`; -1 if absent."""
    order = np.argsort(before)
    positions = order[np.minimum(np.searchsorted(before, ids, sorter=order), len(before) - 1)]
    return np.where(before[positions] == ids, positions, -1).astype(np.int32)

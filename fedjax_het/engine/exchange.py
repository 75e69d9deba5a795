"""Client states on their way between a store and the device, a cohort at a time."""

from typing import NamedTuple

import jax
import numpy as np

from fedjax_het.engine.client_side import Cohort
from fedjax_het.engine.layout import Layout
from fedjax_het.engine.store import ClientStore
from fedjax_het.types import Array, ClientState


class Comers(NamedTuple):
    """The clients of a round as the store had them while the round before still ran. Leaves [seeds, slots, ...]."""

    states: ClientState
    places: Array  # where in the round before a client stood, whose state is then taken from there; -1: nowhere


def taken_out(store: ClientStore, cohort: Cohort, before: np.ndarray | None, layout: Layout) -> Comers:
    """Those of a cohort, on the device.   before: ids [seeds, n] that are still training; None: all is in the store."""
    places = np.full(cohort.ids.shape, -1, np.int32)
    if before is not None:
        places = np.stack([_places_among(*each) for each in zip(before, cohort.ids, strict=True)])
    return Comers(jax.device_put(store.take(cohort.ids), layout.by_client(axis=1)), layout.place(places))


def put_back(store: ClientStore, ids: np.ndarray, clients: ClientState) -> None:
    """What a round made of its clients, as soon as it has ended: ids [seeds, n], leaves [seeds, n or more, ...]."""
    store.put(ids, jax.tree.map(lambda x: np.asarray(x)[:, : ids.shape[1]], clients))


def _places_among(before: np.ndarray, ids: np.ndarray) -> np.ndarray:
    """Where in `before` each of these ids stands; -1: nowhere."""
    order = np.argsort(before)
    found = order[np.minimum(np.searchsorted(before, ids, sorter=order), len(before) - 1)]
    return np.where(before[found] == ids, found, -1).astype(np.int32)

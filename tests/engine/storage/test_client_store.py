"""Client states off the device, compared with the same states as dense arrays."""

import os
import tempfile
import tracemalloc

import jax
import numpy as np
import pytest

from fedjax_het.engine.storage import records
from fedjax_het.engine.storage.client_store import ClientStore
from fedjax_het.types import ClientState
from tests.harness import is_equal

SEEDS, CLIENTS = 2, 50


def initial_states(size: int = 3) -> ClientState:
    """Leaves [seeds, ...] of several types; one has no entry."""
    generator = np.random.default_rng(0)
    memory = {
        "control": generator.normal(size=(SEEDS, size, 2)).astype(np.float32),
        "half": generator.normal(size=(SEEDS, 5)).astype(jax.numpy.bfloat16),
        "key": generator.integers(0, 9, (SEEDS, 2), np.uint32),
        "nothing": np.zeros((SEEDS, 0), np.float32),
    }
    return ClientState({"params": {"w": np.ones((SEEDS,), np.float32)}}, memory, np.zeros(SEEDS, np.int32))


def dense(states: ClientState, clients: int = CLIENTS) -> ClientState:
    return jax.tree.map(lambda x: np.repeat(x[:, None], clients, axis=1), states)


def update_clients(
    store: ClientStore, mirror: ClientState, ids: np.ndarray, has_reported: np.ndarray, value: float
) -> None:
    """Take, change and put states as in a round; clients that have not reported do not change."""
    taken = store.take(ids)

    def changed(leaf):
        keep = has_reported.reshape(has_reported.shape + (1,) * (leaf.ndim - 2))
        return np.where(keep, leaf + np.asarray(value).astype(leaf.dtype), leaf)

    after = jax.tree.map(changed, taken)._replace(rounds=taken.rounds + has_reported)
    store.put(ids, after)
    seeds = np.arange(SEEDS)[:, None]
    for mirrored, new in zip(jax.tree.leaves(mirror), jax.tree.leaves(after), strict=True):
        mirrored[seeds, ids] = new


def update_random(store: ClientStore, mirror: ClientState, rounds: int = 20, seed: int = 1) -> None:
    generator = np.random.default_rng(seed)
    for number in range(rounds):
        ids = np.stack([generator.choice(CLIENTS, 7, replace=False) for _ in range(SEEDS)])
        update_clients(store, mirror, ids, generator.random(ids.shape) < 0.7, number)


@pytest.mark.parametrize("is_on_disk", [False, True])
def test_a_client_store_equals_dense_arrays(tmp_path, is_on_disk):
    store, mirror = ClientStore(initial_states(), CLIENTS, tmp_path if is_on_disk else None), dense(initial_states())
    assert is_equal(store.take_all(), mirror)
    update_random(store, mirror)
    assert is_equal(store.take_all(), mirror)
    assert jax.tree.structure(store.take_all()) == jax.tree.structure(mirror)
    for leaf, shape in zip(jax.tree.leaves(mirror), jax.tree.leaves(store.shapes), strict=True):
        assert (leaf.shape, leaf.dtype) == (shape.shape, shape.dtype)


def test_a_client_store_works_without_leaves():
    store = ClientStore(ClientState({}, {}, np.zeros(SEEDS, np.int32)), CLIENTS, None)
    ids = np.array([[3, 1], [0, 49]])
    store.put(ids, ClientState({}, {}, np.ones((SEEDS, 2), np.int32)))
    assert np.argwhere(store.take_all().rounds).tolist() == [[0, 1], [0, 3], [1, 0], [1, 49]]


@pytest.mark.parametrize("is_on_disk", [False, True])
def test_memory_and_disk_grow_with_the_clients_that_took_part_only(tmp_path, monkeypatch, is_on_disk):
    """8 GB of states in total; four clients have one."""
    files, make = [], tempfile.TemporaryFile
    monkeypatch.setattr(tempfile, "TemporaryFile", lambda **options: files.append(make(**options)) or files[-1])
    monkeypatch.setattr(records, "_BLOCK", 1 << 20)
    tracemalloc.start()
    store = ClientStore(initial_states(size=5000), 100_000, tmp_path if is_on_disk else None)
    ids = np.array([[7, 99_999], [5, 6]])
    for _ in range(2):
        taken = store.take(ids)
        store.put(ids, taken._replace(rounds=taken.rounds + 1))
    del taken
    used, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert used < 2 * 100_000 * 8 + (1 << 20) + 200_000
    assert not list(tmp_path.iterdir())
    for file in files:
        assert os.fstat(file.fileno()).st_size == 4 * store.record_dtype["record"].itemsize

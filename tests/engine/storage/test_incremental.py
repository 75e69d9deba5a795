"""Checkpoints of a client store: consistent, whole, and no larger than what has changed."""

import numpy as np
import pytest

from fedjax_het.engine.storage import incremental
from fedjax_het.engine.storage.client_store import ClientStore
from fedjax_het.engine.storage.incremental import IncrementalCheckpoint
from tests.engine.storage.test_client_store import (
    CLIENTS,
    SEEDS,
    dense,
    initial_states,
    update_clients,
    update_random,
)
from tests.harness import is_equal


def new_store() -> ClientStore:
    return ClientStore(initial_states(), CLIENTS, None)


def test_a_client_store_is_restored_from_its_checkpoint(tmp_path):
    store, mirror, kept = new_store(), dense(initial_states()), IncrementalCheckpoint(tmp_path / "clients")
    for round in range(1, 6):
        update_random(store, mirror, rounds=3, seed=round)
        listed = kept.write(round, store)
    other = new_store()
    update_random(other, dense(initial_states()), seed=99)
    IncrementalCheckpoint(tmp_path / "clients").read(listed, other)
    assert is_equal(other.take_all(), mirror)


def test_equal_states_have_equal_files_whatever_was_in_memory_before(tmp_path, monkeypatch):
    listed, make_empty = [], np.empty
    for garbage in (17, 202):

        def make_filled(shape, dtype=float, garbage=garbage):
            array = make_empty(shape, dtype)
            array.view(np.uint8)[...] = garbage
            return array

        monkeypatch.setattr(np, "empty", make_filled)
        store = new_store()
        update_random(store, dense(initial_states()))
        listed.append(IncrementalCheckpoint(tmp_path / str(garbage)).write(1, store))
    first, second = listed
    assert first == second  # names and checksums
    for written in first:
        files = [tmp_path / folder / written["file"] for folder in ("17", "202")]
        assert files[0].read_bytes() == files[1].read_bytes()


def test_a_checkpoint_before_training_writes_no_file(tmp_path):
    assert IncrementalCheckpoint(tmp_path / "clients").write(1, new_store()) == []


def test_a_checkpoint_writes_changed_clients_only(tmp_path):
    store, mirror, kept = new_store(), dense(initial_states()), IncrementalCheckpoint(tmp_path)
    everyone = np.tile(np.arange(CLIENTS), (SEEDS, 1))
    update_clients(store, mirror, everyone, np.ones_like(everyone, bool), 1.0)
    update_clients(store, mirror, everyone[:, :3], np.array([[True] * 3, [True, False, False]]), 2.0)
    assert [segment["num_records"] for segment in kept.write(1, store)] == [SEEDS * CLIENTS]
    update_clients(store, mirror, everyone[:, :3], np.array([[True] * 3, [True, False, False]]), 3.0)
    assert [segment["num_records"] for segment in kept.write(2, store)] == [SEEDS * CLIENTS, 4]
    assert kept.write(3, store) == kept.write(2, store)


def test_pruned_checkpoints_hold_at_most_twice_the_states(tmp_path):
    store, mirror, kept = new_store(), dense(initial_states()), IncrementalCheckpoint(tmp_path)
    for round in range(1, 60):
        update_random(store, mirror, rounds=1, seed=round)
        listed = kept.write(round, store)
        kept.prune(listed)
        assert sum(segment["num_records"] for segment in listed) <= 2 * np.count_nonzero(store.rounds)
    assert {path.name for path in tmp_path.iterdir()} == {segment["file"] for segment in listed}
    other = new_store()
    kept.read(listed, other)
    assert is_equal(other.take_all(), mirror)


def test_a_store_restored_to_an_older_checkpoint_is_saved_correctly(tmp_path):
    """Restore an older checkpoint and continue differently: records of the newer one must not count as written."""
    store, mirror, kept = new_store(), dense(initial_states()), IncrementalCheckpoint(tmp_path)
    update_random(store, mirror, seed=1)
    older = kept.write(1, store)
    update_random(store, mirror, seed=2)
    kept.write(2, store)
    kept.read(older, store)
    mirror = store.take_all()
    update_random(store, mirror, seed=3)
    other = new_store()
    kept.read(kept.write(3, store), other)
    assert is_equal(other.take_all(), mirror)


def test_a_store_larger_than_the_buffer_is_restored_from_its_checkpoint(tmp_path, monkeypatch):
    monkeypatch.setattr(incremental, "_BUFFER_SIZE", 200)
    test_a_client_store_is_restored_from_its_checkpoint(tmp_path)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda path: path.unlink(), "No such file"),
        (lambda path: path.write_bytes(path.read_bytes()[:-1]), "truncated"),
        (lambda path: path.write_bytes(path.read_bytes()[:-1] + b"?"), "is damaged"),
    ],
)
def test_a_damaged_checkpoint_file_is_refused(tmp_path, damage, message):
    store, kept = new_store(), IncrementalCheckpoint(tmp_path)
    update_random(store, dense(initial_states()))
    listed = kept.write(1, store)
    damage(tmp_path / listed[0]["file"])
    with pytest.raises(OSError, match=message):
        kept.read(listed, new_store())

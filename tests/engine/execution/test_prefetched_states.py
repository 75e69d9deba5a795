"""Client states that are prefetched while the round before still trains some of the same clients."""

import jax
import numpy as np

from fedjax_het.engine import ClientStore, sharded, vmapped
from fedjax_het.engine.execution import streaming
from fedjax_het.engine.round.client_step import Cohort
from fedjax_het.types import ClientState


def store() -> ClientStore:
    return ClientStore(ClientState({}, {"c": np.zeros((2, 3), np.float32)}, np.zeros(2, np.int32)), 9, None)


def test_positions_name_the_place_of_a_client_in_the_previous_cohort():
    before, ids = np.array([[7, 2, 5], [0, 1, 2]]), np.array([[2, 8, 7, 0], [2, 3, 4, 0]], np.int32)
    cohort = Cohort(ids, np.ones_like(ids, bool))
    assert streaming.load_states(store(), cohort, None, vmapped).positions.tolist() == [[-1] * 4] * 2
    comers = streaming.load_states(store(), cohort, before, vmapped)
    assert comers.positions.tolist() == [[1, -1, 0, -1], [2, -1, -1, 0]]


def test_stored_states_are_loaded_by_the_next_cohort():
    kept, ids = store(), np.array([[4, 6, 1], [8, 0, 3]], np.int32)
    padded = Cohort(np.pad(ids, ((0, 0), (0, 1))), np.ones((2, 4), bool))
    comers = streaming.load_states(kept, padded, None, sharded(2))
    trained = jax.tree.map(lambda x: x + 1, comers.states)
    streaming.store_states(kept, ids, trained)
    again = streaming.load_states(kept, padded, None, sharded(2)).states
    assert again.rounds.tolist() == [[1, 1, 1, 0], [1, 1, 1, 1]]  # the last only pads: client 0
    np.testing.assert_array_equal(again.memory["c"][..., 0], again.rounds)

"""Client states that are prefetched while the previous round still trains some of the same clients."""

import jax
import numpy as np

from fedjax_het.engine import ClientStore
from fedjax_het.engine.execution.client_states import StoredStates
from fedjax_het.engine.round.client_step import Cohort
from fedjax_het.types import ClientState


def open_states():
    """States of nine clients in two runs, and a stand-in for the merging program that returns its arguments."""
    store = ClientStore(ClientState({}, {"c": np.zeros((2, 3), np.float32)}, np.zeros(2, np.int32)), 9, None)
    return store, StoredStates(store, 3, lambda last, positions, stored: (last, positions, stored))


def draw(ids: list[list[int]]) -> Cohort:
    padded = np.pad(np.array(ids, np.int32), ((0, 0), (0, 1)))
    return Cohort(padded, np.arange(4) < np.full((2, 1), 3))


def test_positions_name_the_place_of_a_client_in_the_previous_cohort():
    _, states = open_states()
    first, second = draw([[7, 2, 5], [0, 1, 2]]), draw([[2, 8, 7], [2, 3, 4]])
    states.prefetch(first)
    _, positions, stored = states.take(first.ids)
    assert positions.tolist() == [[-1] * 4] * 2
    states.put(first.ids, jax.tree.map(lambda x: x + 1, stored))
    states.prefetch(second)
    last, positions, stored = states.take(second.ids)
    assert positions.tolist() == [[1, -1, 0, -1], [2, -1, -1, 0]]
    assert last.rounds.tolist() == [[1] * 4] * 2 and stored.rounds.tolist() == [[0] * 4] * 2


def test_states_are_stored_a_round_later_without_those_of_padding():
    store, states = open_states()
    cohorts = [draw([[4, 6, 1], [8, 0, 3]]), draw([[4, 5, 2], [7, 0, 2]])]
    for number, cohort in enumerate(cohorts):
        states.prefetch(cohort)
        assert store.rounds.sum() == 0
        states.put(cohort.ids, jax.tree.map(lambda x, number=number: x + number + 1, states.take(cohort.ids)[2]))
    assert states.finish() is store
    assert store.rounds.tolist() == [[0, 1, 2, 0, 2, 2, 1, 0, 0], [2, 0, 2, 1, 0, 0, 0, 2, 1]]
    np.testing.assert_array_equal(store.take_all().memory["c"][..., 0], store.rounds)

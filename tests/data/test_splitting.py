"""Position tables, and the random splits that fill them."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fedjax_het.data import splitting


def test_a_table_is_padded_with_zeros():
    table = splitting.pad_lists([np.array([4, 5]), np.array([], int), np.array([7])])
    np.testing.assert_array_equal(table.index, [[4, 5], [0, 0], [7, 0]])
    np.testing.assert_array_equal(table.count, [2, 0, 1])
    assert table.index.dtype == table.count.dtype == np.int32


def test_an_empty_table_has_a_capacity_of_one():
    assert splitting.pad_lists([np.array([], int)] * 2).index.shape == (2, 1)


@given(st.integers(0, 60), st.floats(0, 0.5), st.floats(0, 0.49), st.integers(0, 9))
def test_a_split_uses_every_position_once_and_keeps_one_for_training(num, valid, test, seed):
    positions = np.arange(num) * 3
    parts = splitting.split_positions(positions, valid, test, np.random.default_rng(seed))
    np.testing.assert_array_equal(np.sort(np.concatenate(parts)), positions)
    assert len(parts.train) >= min(num, 1)
    assert abs(len(parts.test) - test * num) <= 0.5 or len(parts.train) == 1


@given(st.lists(st.integers(0, 5), max_size=80), st.floats(0, 1), st.integers(0, 9))
def test_every_stratum_is_split_by_its_fraction_to_within_one(strata, fraction, seed):
    strata = np.array(strata, int)
    is_drawn = splitting.draw_stratified(strata, fraction, np.random.default_rng(seed))
    for group in [np.ones(len(strata), bool), *(strata == each for each in np.unique(strata))]:
        assert abs(is_drawn[group].sum() - fraction * group.sum()) < 1 + 1e-9

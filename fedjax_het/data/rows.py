"""Index tables: which examples a client, or a test set, has. Integers move; examples never do."""

from typing import NamedTuple

import numpy as np

from fedjax_het.types import Rows


class Split(NamedTuple):
    """The positions of one client's examples, each in one of three."""

    train: np.ndarray
    valid: np.ndarray
    test: np.ndarray


def table(lists: list[np.ndarray]) -> Rows:
    """Ragged lists as one zero-padded table: index [clients, capacity] and count [clients], both int32.

    The capacity is that of the longest list, and at least 1, so that a gather from an empty table is still a gather.
    """
    count = np.array([len(each) for each in lists], np.int32)
    index = np.zeros((len(lists), max(1, count.max(initial=0))), np.int32)
    for row, each in zip(index, lists, strict=True):
        row[: len(each)] = each
    return Rows(index, count)


def single(positions: np.ndarray) -> Rows:
    """One list without padding: index [n], count []."""
    return Rows(np.asarray(positions, np.int32), np.int32(len(positions)))


def draw_stratified(strata: np.ndarray, fraction: float, rng: np.random.Generator) -> np.ndarray:
    """[n] bool: `fraction` of all examples, and of every stratum, each to within one example.

    Systematic sampling: examples are put in line by stratum, at random within it, and taken at even steps from a
    random start.
    """
    line = np.lexsort((rng.random(len(strata)), strata))
    steps = np.floor(np.arange(len(strata) + 1) * fraction + rng.random())
    is_drawn = np.zeros(len(strata), bool)
    is_drawn[line[np.diff(steps) > 0]] = True
    return is_drawn


def split(positions: np.ndarray, valid_fraction: float, test_fraction: float, rng: np.random.Generator) -> Split:
    """Cut one client's positions at random into train, valid and test; each sorted.

    Counts are rounded to the nearest; at least one example, where there is one, stays in train.
    """
    most = max(0, len(positions) - 1)
    num_test = min(_nearest(test_fraction * len(positions)), most)
    num_valid = min(_nearest(valid_fraction * len(positions)), most - num_test)
    mixed = rng.permutation(positions)
    test, valid, train = np.split(mixed, [num_test, num_test + num_valid])
    return Split(np.sort(train), np.sort(valid), np.sort(test))


def _nearest(number: float) -> int:
    return int(number + 0.5)

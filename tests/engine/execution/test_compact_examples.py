"""A cohort's examples in a table of their own."""

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from fedjax_het.engine.execution.prefetch import compact_examples, prefetch, select_rows
from fedjax_het.types import Examples, Rows

EXAMPLES = Examples(np.arange(100, 140, dtype=np.uint8)[:, None], np.arange(40, dtype=np.int32))
ROWS = Rows(np.array([[5, 9, 2], [30, 0, 0], [7, 3, 0], [0, 0, 0]], np.int32), np.array([3, 1, 2, 0], np.int32))


def named(examples: Examples, rows: Rows) -> list[list[int]]:
    """The labels that each client's row names."""
    return [
        examples.labels[index[:count]].tolist()
        for index, count in zip(rows.index.reshape(-1, 3), rows.count.reshape(-1), strict=True)
    ]


def test_the_tables_name_what_they_named():
    train = select_rows(ROWS, np.array([[2, 0], [0, 3]]), np.array([[True, True], [True, False]]))
    valid = select_rows(ROWS, np.array([[1, 1], [3, 2]]), np.array([[True, False], [True, True]]))
    examples, (near, far) = compact_examples(EXAMPLES, (train, valid), 20)
    assert named(examples, near) == named(EXAMPLES, train) == [[7, 3], [5, 9, 2], [5, 9, 2], []]
    assert named(examples, far) == named(EXAMPLES, valid) == [[30], [], [], [7, 3]]
    assert examples.inputs.shape == (20, 1) and examples.inputs.dtype == np.uint8
    np.testing.assert_array_equal(examples.inputs[near.index[0, 1], 0], [105, 109, 102])


def test_padding_reads_what_it_read():
    examples, (rows,) = compact_examples(EXAMPLES, (select_rows(ROWS, np.array([1, 3]), np.array([True, True])),), 2)
    assert rows.index.tolist() == [[1, 0, 0], [0, 0, 0]]
    assert examples.labels[0] == EXAMPLES.labels[0]


def test_the_next_is_made_while_one_is_in_use():
    made = {number: threading.Event() for number in range(4)}

    def make(number: int) -> int:
        made[number].set()
        return number * number

    with ThreadPoolExecutor(1) as executor:
        for number, square in enumerate(prefetch(executor, make, range(4))):
            assert square == number * number
            assert number == 3 or made[number + 1].wait(timeout=60)
            assert number >= 2 or not made[number + 2].is_set()

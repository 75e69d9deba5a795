"""Compact tables of a cohort's examples."""

import numpy as np

from fedjax_het.engine.execution.loading import compact_examples, move_entries, select_rows, sort_by_client
from fedjax_het.types import Examples, Rows

EXAMPLES = Examples(np.arange(100, 140, dtype=np.uint8)[:, None], np.arange(40, dtype=np.int32))
ROWS = Rows(np.array([[5, 9, 2], [30, 0, 0], [7, 3, 0], [0, 0, 0]], np.int32), np.array([3, 1, 2, 0], np.int32))


def labels_of_rows(examples: Examples, rows: Rows) -> list[list[int]]:
    """The labels in each client's row, under any concept."""
    return [
        examples.labels[index[:count] % len(examples.labels)].tolist()
        for index, count in zip(rows.index.reshape(-1, 3), rows.count.reshape(-1), strict=True)
    ]


def test_compact_tables_name_the_same_examples():
    train = select_rows(ROWS, np.array([[2, 0], [0, 3]]), np.array([[True, True], [True, False]]))
    valid = select_rows(ROWS, np.array([[1, 1], [3, 2]]), np.array([[True, False], [True, True]]))
    examples, (near, far) = compact_examples(EXAMPLES, (train, valid), 20)
    assert labels_of_rows(examples, near) == labels_of_rows(EXAMPLES, train) == [[7, 3], [5, 9, 2], [5, 9, 2], []]
    assert labels_of_rows(examples, far) == labels_of_rows(EXAMPLES, valid) == [[30], [], [], [7, 3]]
    assert examples.inputs.shape == (20, 1) and examples.inputs.dtype == np.uint8
    np.testing.assert_array_equal(examples.inputs[near.index[0, 1], 0], [105, 109, 102])


def test_padding_refers_to_the_same_example_as_before():
    examples, (rows,) = compact_examples(EXAMPLES, (select_rows(ROWS, np.array([1, 3]), np.array([True, True])),), 2)
    assert rows.index.tolist() == [[1, 0, 0], [0, 0, 0]]
    assert examples.labels[0] == EXAMPLES.labels[0]


def test_the_examples_of_a_client_are_side_by_side_in_a_sorted_copy():
    examples, places = sort_by_client(EXAMPLES, ROWS)
    assert examples.labels[:8].tolist() == [5, 9, 2, 30, 7, 3, 0, 1]  # the clients' examples, and the others in order
    assert sorted(examples.labels) == sorted(EXAMPLES.labels) and examples.inputs.dtype == np.uint8
    assert (examples.inputs[:, 0] == 100 + examples.labels).all()
    second = ROWS._replace(index=ROWS.index + len(EXAMPLES.labels))  # under the second concept
    for rows, concept in ((ROWS, 0), (second, 1)):
        moved = move_entries(rows, places)
        assert labels_of_rows(examples, moved) == labels_of_rows(EXAMPLES, rows) == [[5, 9, 2], [30], [7, 3], []]
        assert (moved.index // len(examples.labels) == concept).all()

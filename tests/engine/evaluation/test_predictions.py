"""Predictions of single examples, and confusion matrices."""

import numpy as np
import pytest

from fedjax_het.engine import confusion_matrix
from fedjax_het.errors import InputError


def test_a_confusion_matrix_has_true_classes_in_rows():
    matrix = confusion_matrix(np.array([0, 0, 1, 2]), np.array([0, 1, 1, 1]), 3)
    assert matrix.tolist() == [[1, 1, 0], [0, 1, 0], [0, 1, 0]]


def test_a_confusion_matrix_counts_pixels_and_leaves_out_the_padding_of_sequences():
    mask = np.array([[[0, 1], [1, 1]]])
    assert confusion_matrix(mask, np.ones_like(mask), 2).tolist() == [[0, 1], [0, 3]]
    assert confusion_matrix(np.array([[1, 0, -1]]), np.array([[1, 1, 1]]), 2).tolist() == [[0, 1], [0, 1]]


def test_times_of_survival_have_no_confusion_matrix():
    with pytest.raises(InputError, match="survival times"):
        confusion_matrix(np.array([1.5, -2.0]), np.array([0, 1]), 2)

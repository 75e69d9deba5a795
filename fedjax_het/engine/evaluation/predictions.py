"""Predictions of single examples, and confusion matrices."""

import numpy as np
from jaxtyping import Int

from fedjax_het.errors import InputError
from fedjax_het.labels import PADDING, are_times


def confusion_matrix(labels: np.ndarray, predicted: np.ndarray, num_classes: int) -> Int[np.ndarray, "class class"]:
    """Count the examples (pixels of masks, positions of sequences) by true and by predicted class.

    Args:
        labels: True classes [examples, ...]; the padding of sequences is left out.
        predicted: Predicted classes, of the same shape.
        num_classes: The number of classes.

    Returns:
        Counts, int64; rows are true classes, columns predicted ones.

    Raises:
        InputError: The labels are times of survival.
    """
    labels, predicted = np.asarray(labels), np.asarray(predicted)
    if are_times(labels):
        raise InputError("confusion matrix: the labels are times of survival, not classes.")
    is_counted = labels != PADDING
    cells = labels[is_counted].astype(np.int64) * num_classes + predicted[is_counted]
    return np.bincount(cells, minlength=num_classes**2).reshape(num_classes, num_classes)

"""What a client computes for the server or for its own memory; each reads a ClientView. One mechanism a file."""

from fedjax_het.client.measures._head_gradient import head_gradient
from fedjax_het.client.measures._losses import generalization_gap, training_gain, training_loss, validation_loss
from fedjax_het.client.measures._statistics import class_statistics, head_statistics, own_head, prototypes
from fedjax_het.client.measures._updates import change_of_control, coefficient_norm, effective_learning_rate

__all__ = [
    "change_of_control",
    "class_statistics",
    "coefficient_norm",
    "effective_learning_rate",
    "generalization_gap",
    "head_gradient",
    "head_statistics",
    "own_head",
    "prototypes",
    "training_gain",
    "training_loss",
    "validation_loss",
]

"""What a client computes for the server or for its own memory; each reads a ClientView. One mechanism a file."""

from fedjax_het.client.measures.classes import class_statistics, prototypes
from fedjax_het.client.measures.coefficients import coefficient_norm
from fedjax_het.client.measures.control import change_of_control
from fedjax_het.client.measures.head_gradient import head_gradient
from fedjax_het.client.measures.heads import head_statistics, own_head
from fedjax_het.client.measures.losses import generalization_gap, training_gain, validation_loss
from fedjax_het.client.measures.reach import reach
from fedjax_het.client.measures.training_loss import training_loss

__all__ = [
    "change_of_control",
    "class_statistics",
    "coefficient_norm",
    "generalization_gap",
    "head_gradient",
    "head_statistics",
    "own_head",
    "prototypes",
    "reach",
    "training_gain",
    "training_loss",
    "validation_loss",
]

"""Measures: values that a client computes from a ClientView, for the server or for its own memory."""

from fedjax_het.client.measures._amplitudes import low_frequency_amplitudes
from fedjax_het.client.measures._gradient_trace import gradient_trace
from fedjax_het.client.measures._head_gradient import head_gradient
from fedjax_het.client.measures._losses import (
    Examples,
    Metric,
    Moment,
    assigned_model,
    best_model,
    generalization_gap,
    loss_of,
    losses_of_models,
    mean_loss,
    nearest_model,
    training_gain,
    training_loss,
)
from fedjax_het.client.measures._statistics import (
    class_counts,
    class_moments,
    class_statistics,
    head_statistics,
    own_head,
    prototypes,
)
from fedjax_het.client.measures._updates import (
    CoefficientRule,
    Control,
    change_of_control,
    coefficient_norm,
    displacement,
    effective_learning_rate,
    movement_per_rate,
    result,
    shared_gradient_state,
    squared_norm,
)

__all__ = [
    "CoefficientRule",
    "Control",
    "Examples",
    "Metric",
    "Moment",
    "assigned_model",
    "best_model",
    "change_of_control",
    "class_counts",
    "class_moments",
    "class_statistics",
    "coefficient_norm",
    "displacement",
    "effective_learning_rate",
    "generalization_gap",
    "gradient_trace",
    "head_gradient",
    "head_statistics",
    "loss_of",
    "losses_of_models",
    "low_frequency_amplitudes",
    "mean_loss",
    "movement_per_rate",
    "nearest_model",
    "own_head",
    "prototypes",
    "result",
    "shared_gradient_state",
    "squared_norm",
    "training_gain",
    "training_loss",
]

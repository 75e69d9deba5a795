"""Local updates: training of a client within a round."""

from fedjax_het.client.local_updates._combinations import (
    alternating,
    delayed,
    sequential,
    with_own_model,
    wrap_training,
)
from fedjax_het.client.local_updates._sgd import (
    LearningRate,
    Training,
    TrainingWithoutMomentum,
    TrainingWithoutRate,
    pop_optimizer,
    refuse_only,
    sgd,
    split_training,
)

__all__ = [
    "LearningRate",
    "Training",
    "TrainingWithoutMomentum",
    "TrainingWithoutRate",
    "alternating",
    "delayed",
    "pop_optimizer",
    "refuse_only",
    "sequential",
    "sgd",
    "split_training",
    "with_own_model",
    "wrap_training",
]

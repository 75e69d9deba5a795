"""SVHN with label skew: 100 clients, ten per round.

--config.data.path is the folder with train_32x32.mat and test_32x32.mat. For data prepared by TensorFlow Datasets set
--config.data.name=tfds --config.data.builder=svhn_cropped.
"""

from typing import Any


def get_config() -> dict[str, Any]:
    return {
        "algorithm": {"name": "fedavg", "learning_rate": 0.01, "momentum": 0.9, "batch_size": 50, "epochs": 1},
        "model": {"name": "lenet"},
        "data": {
            "name": "svhn",
            "num_clients": 100,
            "partition": {"name": "dirichlet", "alpha": 0.5},
            "standardise": True,
        },
        "rounds": 200,
        "cohort_size": 10,
    }

"""CIFAR-100 with label skew: 100 clients, ten per round, as prepared by TensorFlow Datasets.

If it is not prepared, the first run explains how to do it. For the batches published by its authors set
--config.data.name=arrays --config.data.path=...
"""

from typing import Any


def get_config() -> dict[str, Any]:
    return {
        "algorithm": {"name": "fedavg", "learning_rate": 0.05, "batch_size": 50, "epochs": 1},
        "model": {"name": "cnn", "channels": (16, 32), "hidden": (64,)},
        "data": {
            "name": "tfds",
            "builder": "cifar100",
            "num_clients": 100,
            "partition": {"name": "dirichlet", "alpha": 0.5},
        },
        "rounds": 200,
        "cohort_size": 10,
    }

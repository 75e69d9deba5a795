"""CIFAR-100 among 100 clients with skewed classes, ten a round, as TensorFlow Datasets has prepared it.

Where it is not prepared, the first start says how; for the batches that its authors publish set
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

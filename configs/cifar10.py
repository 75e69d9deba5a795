"""CIFAR-10 with label skew: 100 clients, ten per round, as prepared by TensorFlow Datasets.

If it is not prepared, the first run explains how to do it. For the batches published by its authors set
--config.data.name=arrays --config.data.path=...

The setting fl_simulator is that of FL-Simulator's table, which `python -m experiments.papers fl_simulator` reproduces:
ResNet-18 with group norm, 1,000 rounds of five epochs.
"""

from typing import Any, Literal


def get_config(setting: Literal["fedavg", "fl_simulator"] = "fedavg") -> dict[str, Any]:
    if setting == "fl_simulator":
        return _published()
    return {
        "algorithm": {"name": "fedavg", "learning_rate": 0.05, "batch_size": 50, "epochs": 1},
        "model": {"name": "cnn", "channels": (16, 32), "hidden": (64,)},
        "data": {
            "name": "tfds",
            "builder": "cifar10",
            "num_clients": 100,
            "partition": {"name": "dirichlet", "alpha": 0.5},
        },
        "rounds": 200,
        "cohort_size": 10,
    }


def _published() -> dict[str, Any]:
    return {
        "algorithm": {
            "name": "fedavg",
            "learning_rate": 0.1,
            "learning_rate_schedule": {"name": "exponential", "factor": 0.998},
            "weight_decay": 0.001,
            "batch_size": 50,
            "epochs": 5,
        },
        "model": {"name": "resnet18", "norm": "group", "stem": "small"},
        "data": {
            "name": "tfds",
            "builder": "cifar10",
            "num_clients": 100,
            "partition": {"name": "dirichlet", "alpha": 0.6, "equal_sizes": True},
            "augment": {"name": "images", "flip": 0.5},
            "valid_fraction": 0.0,
            "client_test_fraction": 0.0,
            "standardise": True,
        },
        "rounds": 1000,
        "cohort_size": 10,
    }

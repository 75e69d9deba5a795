"""Tiny-ImageNet among 100 clients with skewed classes, ten per round. Give the data with --config.data.path=...

The path is the folder tiny-imagenet-200, or the one above. The network is a ResNet-18 for small images.
"""

from typing import Any


def get_config() -> dict[str, Any]:
    return {
        "algorithm": {"name": "fedavg", "learning_rate": 0.01, "momentum": 0.9, "batch_size": 50, "epochs": 1},
        "model": {"name": "resnet18", "norm": "group", "stem": "small"},
        "data": {
            "name": "tiny_imagenet",
            "num_clients": 100,
            "partition": {"name": "dirichlet", "alpha": 0.5},
            "standardise": True,
        },
        "rounds": 200,
        "cohort_size": 10,
    }

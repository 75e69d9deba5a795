"""Tiny-ImageNet with label skew: 100 clients, ten per round.

--config.data.path is the folder tiny-imagenet-200 or its parent. The network is a ResNet-18 for small images.
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

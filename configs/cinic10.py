"""CINIC-10 with label skew: 100 clients, ten per round.

--config.data.path is the folder with train, valid and test. The published validation images belong to the clients. For
clients with images from either CIFAR-10 or ImageNet, set --config.data.partition.name=by_domain.
"""

from typing import Any


def get_config() -> dict[str, Any]:
    return {
        "algorithm": {"name": "fedavg", "learning_rate": 0.01, "momentum": 0.9, "batch_size": 50, "epochs": 1},
        "model": {"name": "lenet"},
        "data": {
            "name": "cinic10",
            "num_clients": 100,
            "partition": {"name": "dirichlet", "alpha": 0.5},
            "standardise": True,
        },
        "rounds": 200,
        "cohort_size": 10,
    }

"""Digits-DG, one client per domain.

--config.data.path is the folder with mnist, mnist_m, svhn and syn, or the folder that contains digits_dg/. A fifth of
each client's images is its test set, which scores personal models, such as FedBN's, in their own domain.
"""

from typing import Any


def get_config() -> dict[str, Any]:
    return {
        "algorithm": {"name": "fedavg", "learning_rate": 0.02, "batch_size": 32, "epochs": 1},
        "model": {"name": "cnn", "channels": (16, 32, 64), "hidden": (128,), "kernel": 3, "norm": "batch"},
        "data": {
            "name": "digits_dg",
            "num_clients": 4,
            "partition": {"name": "by_domain"},
            "client_test_fraction": 0.2,
            "standardise": True,
        },
        "rounds": 50,
        "evaluate_every": 5,
    }

"""Digits-5 in FedBN's files, one client per domain.

--config.data.path is the folder with MNIST, SVHN, USPS, SynthDigits and MNIST_M. As in FedBN's code, each client
trains on 743 images (--config.data.parts=10 for ten times as many) for one epoch per round, and is tested on its own
domain. The network is smaller than FedBN's.
"""

from typing import Any


def get_config() -> dict[str, Any]:
    return {
        "algorithm": {"name": "fedavg", "learning_rate": 0.01, "batch_size": 32, "epochs": 1},
        "model": {"name": "cnn", "channels": (32, 64), "hidden": (256,), "norm": "batch"},
        "data": {
            "name": "digits5",
            "num_clients": 0,
            "partition": {"name": "by_domain"},
            "local_test": True,
            "standardise": True,
        },
        "rounds": 100,
    }

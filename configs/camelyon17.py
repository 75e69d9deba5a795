"""Camelyon17-WILDS in HarmoFL's setting: one client per hospital, each with its own test set, and training sets reduced
to the size of the smallest.

--config.data.path is the folder with metadata.csv and patches/, or the folder that contains camelyon17_v1.0/. The
decoded patches take 12.6 GB in the cache; --config.data.cache sets another location. The network and the optimizer are
those of HarmoFL's code; --config.model.width=0.25 reduces the channels to a quarter.
"""

from typing import Any


def get_config() -> dict[str, Any]:
    return {
        "algorithm": {
            "name": "fedavg",
            "learning_rate": 0.001,
            "momentum": 0.9,
            "weight_decay": 1e-4,
            "batch_size": 128,
            "epochs": 1,
        },
        "model": {"name": "harmofl_densenet"},
        "data": {
            "name": "camelyon17",
            "num_clients": 5,
            "partition": {"name": "by_domain"},
            "local_test": True,
            "equal_train": True,
        },
        "rounds": 100,
    }

"""Camelyon17-WILDS as HarmoFL has it: a hospital a client, each with a test set of its own, training cut to the
smallest. Give the data with --config.data.path=...

The path is the folder with metadata.csv and patches/, or the one that holds camelyon17_v1.0/. Decoded patches take
12.6 GB in the cache; --config.data.cache=... puts them elsewhere. Network and optimizer are those of HarmoFL's code;
--config.model.width=0.25 has a quarter of the channels.
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

"""VLCS: one client per domain, and SUN as the unseen domain.

--config.data.path is the folder with the domains, or the folder that contains VLCS/. Images are 64 x 64 for this small
network, 224 x 224 in most papers. The setting fedrd has the paper's five local epochs.
"""

from typing import Any, Literal


def get_config(setting: Literal["fedavg", "fedrd"] = "fedavg") -> dict[str, Any]:
    return {
        "algorithm": {
            "name": setting,
            "learning_rate": 0.02,
            "batch_size": 32,
            "epochs": {"fedavg": 1, "fedrd": 5}[setting],
        },
        "model": {"name": "cnn", "channels": (16, 32, 64), "hidden": (128,), "kernel": 3, "norm": "batch"},
        "data": {
            "name": "vlcs",
            "size": 64,
            "num_clients": 3,
            "partition": {"name": "by_domain"},
            "unseen": "sun",
            "valid_fraction": 0.1,
            "client_test_fraction": 0.0,  # the published test split is the common test set
            "standardise": True,
        },
        "rounds": 50,
        "evaluate_every": 5,
    }

"""Mini-DomainNet: one client per domain, and sketches as the unseen domain.

--config.data.path is the folder with the domains and splits_mini/, or the folder that contains domainnet/; the lists
determine the domains. Images are 64 x 64 for this small network, 224 x 224 in most papers. The setting fedrd has the
paper's five local epochs.
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
            "name": "mini_domainnet",
            "size": 64,
            "num_clients": 3,
            "partition": {"name": "by_domain"},
            "unseen": "sketch",
            "valid_fraction": 0.1,
            "client_test_fraction": 0.0,  # the published test split is the common test set
            "standardise": True,
        },
        "rounds": 50,
        "evaluate_every": 5,
    }

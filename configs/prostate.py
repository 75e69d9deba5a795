"""Prostate MRI of six sites as HarmoFL has it: a site a client, each with a test set of its own, training cut to the
smallest. Give the data with --config.data.path=...

The path is the folder with BIDMC, HK, I2CVB, ISBI, ISBI_1.5 and UCL; pip install "fedjax-het[medical]" reads it.
Network, loss and optimizer are those of HarmoFL's code, but for Adam's betas, which are the paper's.
"""

from typing import Any


def get_config() -> dict[str, Any]:
    return {
        "algorithm": {
            "name": "fedavg",
            "learning_rate": 1e-4,
            "weight_decay": 1e-4,
            "optimizer": "adam",
            "betas": (0.9, 0.99),
            "batch_size": 16,
            "epochs": 1,
        },
        "model": {"name": "unet"},
        "task_loss": "joint",
        "data": {
            "name": "prostate",
            "num_clients": 6,
            "partition": {"name": "by_domain"},
            "local_test": True,
            "equal_train": True,
            "augment": {
                "name": "images",
                "quarter_turns": (0, 1, 2, 3, 4),
                "flip": 0.75,
                "flip_modes": ("horizontal", "vertical", "both"),
            },
        },
        "rounds": 500,
    }

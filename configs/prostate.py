"""Prostate MRI of six sites in HarmoFL's setting: one client per site, each with its own test set, and training sets
reduced to the size of the smallest.

--config.data.path is the folder with BIDMC, HK, I2CVB, ISBI, ISBI_1.5 and UCL; pip install "fedjax-het[medical]"
installs the reader. The network, the loss and the optimizer are those of HarmoFL's code, with the betas of the paper.
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

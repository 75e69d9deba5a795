"""Prostate MRI of six sites as HarmoFL has it: a site a client, each with a test set of its own, training cut to the
smallest. Give the data with --config.data.path=...

The path is the folder with BIDMC, HK, I2CVB, ISBI, ISBI_1.5 and UCL; pip install "fedjax-het[medical]" reads it.
Network, loss and optimizer are those of HarmoFL's code.
"""

from ml_collections import ConfigDict


def base(**algorithm: object) -> ConfigDict:
    """The setting that the files beside this one share; `algorithm` is the table that each fills in."""
    config = ConfigDict()
    config.algorithm = {
        "learning_rate": 1e-4,
        "weight_decay": 1e-4,
        "optimizer": "adam",
        "batch_size": 16,
        "epochs": 1,
    } | algorithm
    config.model = {"name": "unet"}
    config.task_loss = "joint"
    config.data = {
        "name": "prostate",
        "num_clients": 6,
        "partition": {"name": "by_domain"},
        "augment": {
            "name": "images",
            "quarter_turns": (0, 1, 2, 3, 4),
            "flip": 0.75,
            "flip_modes": ("horizontal", "vertical", "both"),
        },
        "local_test": True,
        "equal_train": True,
    }
    config.rounds = 500
    return config

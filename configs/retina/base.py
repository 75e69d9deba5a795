"""Retina of the SSL-FL benchmark, its five clients and its common test list, augmented as in FedLD. Give the data with
--config.data.path=...

The path is the folder Retina, or the one that holds it; --config.data.split=5_clients/split_3 chooses other clients.
Images are 64 x 64 for this small network; FedLD trains a ResNet-50 on 384 x 384.
"""

from ml_collections import ConfigDict


def base(**algorithm: object) -> ConfigDict:
    """The setting that the files beside this one share; `algorithm` is the table that each fills in."""
    config = ConfigDict()
    config.algorithm = {"learning_rate": 0.01, "batch_size": 50, "epochs": 1} | algorithm
    config.model = {"name": "cnn", "channels": (16, 32, 64), "hidden": (128,), "kernel": 3, "norm": "batch"}
    config.data = {
        "name": "retina",
        "size": 64,
        "num_clients": 5,
        "partition": {"name": "by_domain"},
        "augment": {"name": "images", "crop": (0.6, 1.0), "rotation": 10.0, "flip": 0.5},
        "client_test_fraction": 0.0,
        "standardise": True,
    }
    config.rounds = 200
    return config

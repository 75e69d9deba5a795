"""Chest X-rays by source, a source a client. Give the data with --config.data.path=...

The path is a folder with <source>/<class>/<image>; for arrays in an .npz file (<source>_images, <source>_labels) set
--config.data.name=arrays. Several images show one patient: split by patient before you trust a number.
"""

from ml_collections import ConfigDict


def base(**algorithm: object) -> ConfigDict:
    """The setting that the files beside this one share; `algorithm` is the table that each fills in."""
    config = ConfigDict()
    config.algorithm = {"learning_rate": 0.02, "batch_size": 32, "epochs": 1} | algorithm
    config.model = {"name": "cnn", "channels": (16, 32, 64), "hidden": (128,), "kernel": 3, "norm": "batch"}
    config.data = {
        "name": "folders",
        "size": 96,
        "channels": 1,
        "num_clients": 4,
        "partition": {"name": "by_domain"},
        "standardise": True,
    }
    config.rounds = 50
    config.evaluate_every = 5
    return config

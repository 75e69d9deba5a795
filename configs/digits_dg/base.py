"""Digits-DG, a domain a client. Give the data with --config.data.path=...

The path is the folder with mnist, mnist_m, svhn and syn, or the one that holds digits_dg/. A fifth of each client's
images is its own test set, on which models that keep a part on their client, as FedBN's do, are scored in their own
domain.
"""

from ml_collections import ConfigDict


def base(**algorithm: object) -> ConfigDict:
    """The setting that the files beside this one share; `algorithm` is the table that each fills in."""
    config = ConfigDict()
    config.algorithm = {"learning_rate": 0.02, "batch_size": 32, "epochs": 1} | algorithm
    config.model = {"name": "cnn", "channels": (16, 32, 64), "hidden": (128,), "kernel": 3, "norm": "batch"}
    config.data = {
        "name": "digits_dg",
        "num_clients": 4,
        "partition": {"name": "by_domain"},
        "client_test_fraction": 0.2,
        "standardise": True,
    }
    config.rounds = 50
    config.evaluate_every = 5
    return config

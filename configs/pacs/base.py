"""PACS, a domain a client, and sketches as the domain that no client has. Give the data with --config.data.path=...

The path is the folder with art_painting, cartoon, photo and sketch, or the one that holds images/, raw_images/ or
PACS/; for a directory with an .npz file of images a domain set --config.data.name=arrays. Images are 64 x 64 for this
small network, 224 x 224 in most papers. A fifth of each client's images is its own test set, on which models that keep
a part on their client, as FedBN's do, are scored in their own domain.
"""

from ml_collections import ConfigDict


def base(**algorithm: object) -> ConfigDict:
    """The setting that the files beside this one share; `algorithm` is the table that each fills in."""
    config = ConfigDict()
    config.algorithm = {"learning_rate": 0.02, "batch_size": 32, "epochs": 1} | algorithm
    config.model = {"name": "cnn", "channels": (16, 32, 64), "hidden": (128,), "kernel": 3, "norm": "batch"}
    config.data = {
        "name": "pacs",
        "size": 64,
        "num_clients": 3,
        "partition": {"name": "by_domain"},
        "unseen": "sketch",
        "client_test_fraction": 0.2,
        "standardise": True,
    }
    config.rounds = 50
    config.evaluate_every = 5
    return config

"""FEMNIST of LEAF, a writer per client, ten a round. Give the data with --config.data.path=...

The path is LEAF's folder data/femnist, after ./preprocess.sh -s niid --sf 0.05 -k 0 -t sample, or its folder data/. The
network has the size of LEAF's, two convolutions of 32 and 64 channels and 2048 hidden units.
"""

from ml_collections import ConfigDict


def base(**algorithm: object) -> ConfigDict:
    """The setting that the files beside this one share; `algorithm` is the table that each fills in."""
    config = ConfigDict()
    config.algorithm = {"learning_rate": 0.06, "batch_size": 10, "epochs": 1} | algorithm
    config.model = {"name": "cnn", "channels": (32, 64), "hidden": (2048,)}
    config.data = {"name": "femnist", "num_clients": 0, "partition": {"name": "by_domain"}}
    config.rounds = 200
    config.cohort_size = 10
    return config

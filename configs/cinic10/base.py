"""CINIC-10 among 100 clients with skewed classes, ten per round. Give the data with --config.data.path=...

The path is the folder with train, valid and test. The published validation images belong to the clients; for clients
of one origin, CIFAR-10 or ImageNet, set --config.data.partition.name=by_domain.
"""

from ml_collections import ConfigDict


def base(**algorithm: object) -> ConfigDict:
    """The setting that the files beside this one share; `algorithm` is the table that each fills in."""
    config = ConfigDict()
    config.algorithm = {"learning_rate": 0.01, "batch_size": 50, "epochs": 1, "momentum": 0.9} | algorithm
    config.model = {"name": "lenet"}
    config.data = {"name": "cinic10", "num_clients": 100, "partition": {"name": "dirichlet", "alpha": 0.5}}
    config.data.standardise = True
    config.rounds = 200
    config.cohort_size = 10
    return config

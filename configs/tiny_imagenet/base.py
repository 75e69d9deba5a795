"""Tiny-ImageNet among 100 clients with skewed classes, ten per round. Give the data with --config.data.path=...

The path is the folder tiny-imagenet-200, or the one above. The network is a ResNet-18 for small images.
"""

from ml_collections import ConfigDict


def base(**algorithm: object) -> ConfigDict:
    """The setting that the files beside this one share; `algorithm` is the table that each fills in."""
    config = ConfigDict()
    config.algorithm = {"learning_rate": 0.01, "batch_size": 50, "epochs": 1, "momentum": 0.9} | algorithm
    config.model = {"name": "resnet18", "stem": "small", "norm": "group"}
    config.data = {"name": "tiny_imagenet", "num_clients": 100, "partition": {"name": "dirichlet", "alpha": 0.5}}
    config.data.standardise = True
    config.rounds = 200
    config.cohort_size = 10
    return config

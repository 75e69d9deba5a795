"""SVHN among 100 clients with skewed classes, ten per round. Give the data with --config.data.path=...

The path is the folder with train_32x32.mat and test_32x32.mat; for data that TensorFlow Datasets has prepared set
--config.data.name=tfds --config.data.builder=svhn_cropped.
"""

from ml_collections import ConfigDict


def base(**algorithm: object) -> ConfigDict:
    """The setting that the files beside this one share; `algorithm` is the table that each fills in."""
    config = ConfigDict()
    config.algorithm = {"learning_rate": 0.01, "batch_size": 50, "epochs": 1, "momentum": 0.9} | algorithm
    config.model = {"name": "lenet"}
    config.data = {"name": "svhn", "num_clients": 100, "partition": {"name": "dirichlet", "alpha": 0.5}}
    config.data.standardise = True
    config.rounds = 200
    config.cohort_size = 10
    return config

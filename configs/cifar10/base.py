"""CIFAR-10 among 100 clients with skewed classes, ten a round, as TensorFlow Datasets has prepared it.

Where it is not prepared, the first start says how; for the batches that its authors publish set
--config.data.name=arrays --config.data.path=...
"""

from ml_collections import ConfigDict


def base(**algorithm: object) -> ConfigDict:
    """The setting that the files beside this one share; `algorithm` is the table that each fills in."""
    config = ConfigDict()
    config.algorithm = {"learning_rate": 0.05, "batch_size": 50, "epochs": 1} | algorithm
    config.model = {"name": "cnn", "channels": (16, 32), "hidden": (64,)}
    config.data = {
        "name": "tfds",
        "builder": "cifar10",
        "num_clients": 100,
        "partition": {"name": "dirichlet", "alpha": 0.5},
    }
    config.rounds = 200
    config.cohort_size = 10
    return config

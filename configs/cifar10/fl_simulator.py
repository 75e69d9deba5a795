"""FL-Simulator's setting of CIFAR-10: ResNet-18 with group norm, ten of 100 clients a round, 1,000 rounds.

`python -m experiments.papers fl_simulator` trains all of the table's methods from it.
"""

from ml_collections import ConfigDict

from .base import base


def get_config() -> ConfigDict:
    config = base(
        name="fedavg",
        learning_rate=0.1,
        learning_rate_schedule={"name": "exponential", "factor": 0.998},
        weight_decay=0.001,
        epochs=5,
    )
    config.model = {"name": "resnet18", "norm": "group", "stem": "small"}
    config.data.partition = {"name": "dirichlet", "alpha": 0.6, "equal_sizes": True}
    config.data.valid_fraction = 0.0
    config.data.client_test_fraction = 0.0
    config.data.standardise = True
    config.data.augment = {"name": "images", "flip": 0.5}
    config.rounds = 1000
    return config

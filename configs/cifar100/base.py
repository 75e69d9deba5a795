"""CIFAR-100 among 100 clients with skewed classes, ten a round, as TensorFlow Datasets has prepared it.

Where it is not prepared, the first start says how; for the batches that its authors publish set
--config.data.name=arrays --config.data.path=...
"""

from ml_collections import ConfigDict

from ..cifar10 import base as cifar10


def base(**algorithm: object) -> ConfigDict:
    """The setting of CIFAR-10; `algorithm` is the table that each file beside this one fills in."""
    config = cifar10.base(**algorithm)
    config.data.builder = "cifar100"
    return config

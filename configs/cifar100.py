"""CIFAR-100 with label skew: 100 clients, ten per round, as prepared by TensorFlow Datasets.

If it is not prepared, the first run explains how to do it. For the batches published by its authors set
--config.data.name=arrays --config.data.path=...
"""

from typing import Any

from .cifar10 import get_config as cifar10


def get_config() -> dict[str, Any]:
    config = cifar10()
    config["data"]["builder"] = "cifar100"
    return config

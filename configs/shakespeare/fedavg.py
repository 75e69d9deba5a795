"""FedAvg on Shakespeare; the setting is that of base.py."""

from ml_collections import ConfigDict

from .base import base


def get_config() -> ConfigDict:
    return base(name="fedavg")

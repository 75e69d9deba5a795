"""FedProx on Shakespeare with the mu of its paper, 0.001; the setting is that of base.py."""

from ml_collections import ConfigDict

from .base import base


def get_config() -> ConfigDict:
    return base(name="fedprox", mu=0.001)

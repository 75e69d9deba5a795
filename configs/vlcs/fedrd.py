"""FedRD on VLCS; the setting is that of base.py with the five epochs of the paper."""

from ml_collections import ConfigDict

from .base import base


def get_config() -> ConfigDict:
    return base(name="fedrd", epochs=5)

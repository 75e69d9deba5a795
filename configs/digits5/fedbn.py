"""FedBN on Digits-5; the setting is that of base.py."""

from ml_collections import ConfigDict

from .base import base


def get_config() -> ConfigDict:
    return base(name="fedbn")

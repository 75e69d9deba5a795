"""FedLD on COVID-FL; the setting is that of base.py; lam is the paper's for it."""

from ml_collections import ConfigDict

from .base import base


def get_config() -> ConfigDict:
    return base(name="fedld", lam=0.01)

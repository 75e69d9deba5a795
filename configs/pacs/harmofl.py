"""HarmoFL on PACS; the setting is that of base.py, but pixels in 0..1: a mean of zero has no amplitude to share."""

from ml_collections import ConfigDict

from .base import base


def get_config() -> ConfigDict:
    config = base(name="harmofl")
    config.data.standardise = False
    return config

"""FedDG on PACS; the setting is that of base.py, but pixels in 0..1: a mean of zero has no amplitude to replace.

The band is that of FedGA's authors, who run FedDG on PACS.
"""

from ml_collections import ConfigDict

from .base import base


def get_config() -> ConfigDict:
    config = base(name="feddg", band=0.1)
    config.data.standardise = False
    return config

"""SCAFFOLD on Fashion-MNIST; the setting is that of base.py at a lower rate: at 0.05 with ten clients of a hundred a
round, control variates grow stale between two visits of a client, and training collapses after some ninety rounds."""

from ml_collections import ConfigDict

from .base import base


def get_config() -> ConfigDict:
    return base(name="scaffold", learning_rate=0.02)

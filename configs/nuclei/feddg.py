"""FedDG on nuclei; data, model and loss are those of base.py, local training is that of the paper on fundus images."""

from ml_collections import ConfigDict

from .base import base


def get_config() -> ConfigDict:
    return base(name="feddg", optimizer="adam", learning_rate=1e-3, momentum=0.0, weight_decay=0.0, batch_size=5)

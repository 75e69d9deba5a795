"""COVID-FL of the SSL-FL benchmark, its twelve sites and its common test list, augmented as in FedLD. Give the data
with --config.data.path=...

The path is the folder COVID-FL, or the one that holds it. Images are 64 x 64 for this small network; FedLD trains a
ResNet-50 on 384 x 384.
"""

from ml_collections import ConfigDict

from ..retina import base as retina


def base(**algorithm: object) -> ConfigDict:
    """The setting of Retina, with a smaller rate and other crops; `algorithm` is the table that the files fill in."""
    config = retina.base(**({"learning_rate": 0.005} | algorithm))
    config.data.name = "covid_fl"
    config.data.num_clients = 12
    config.data.augment.crop = (0.8, 1.2)
    return config

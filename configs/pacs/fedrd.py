"""FedRD on PACS in its published setting: ResNet-18 on 224 x 224. Give the data with --config.data.path=...

The paper starts from ImageNet weights: --config.model.pretrained=resnet18.safetensors. Every domain is left out in turn
by `compare ... --vary=data.unseen=all`; other algorithms run in this setting with
--config.algorithm.name, or side by side with --vary=algorithm.name=fedavg,fedrd. Smaller: --config.data.size=64.
The rate falls to a tenth after 80 % of the 40 rounds. A tenth of a client's examples is for validation, which FedRD
weighs clients by; PACS' own split lists go before it. Left out: the authors' subsample, which is not published.
"""

from ml_collections import ConfigDict

from .base import base


def get_config() -> ConfigDict:
    config = base(name="fedrd", learning_rate=1e-3, momentum=0.9, weight_decay=5e-4, batch_size=16, epochs=5)
    config.algorithm.learning_rate_schedule = {"name": "steps", "at": (32,)}
    config.model = {"name": "resnet18"}
    config.data.update(size=224, valid_fraction=0.1, client_test_fraction=0.0, test_fraction=0.0)
    config.data.augment = {
        "name": "images",
        "crop": (0.7, 1.0),
        "flip": 0.5,
        "brightness": 0.4,
        "contrast": 0.4,
        "saturation": 0.4,
        "hue": 0.4,
        "grayscale": 0.1,
    }
    config.rounds = 40
    return config

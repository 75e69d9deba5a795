"""COVID-FL of the SSL-FL benchmark: its twelve sites and its common test list, augmented as in FedLD.

--config.data.path is the folder COVID-FL or its parent. Images are 64 x 64 for this small network; FedLD trains a
ResNet-50 on 384 x 384. The setting fedld has the lambda of the paper.
"""

from typing import Any, Literal

from .retina import get_config as retina


def get_config(setting: Literal["fedavg", "fedld"] = "fedavg") -> dict[str, Any]:
    config = retina(setting)
    config["algorithm"].update(learning_rate=0.005, **{"fedavg": {}, "fedld": {"lam": 0.01}}[setting])
    config["data"].update(name="covid_fl", num_clients=12)
    config["data"]["augment"]["crop"] = (0.8, 1.2)
    return config

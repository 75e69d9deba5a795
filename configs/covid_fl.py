"""COVID-FL of the SSL-FL benchmark: its twelve sites and its common test list, augmented as in FedLD.

--config.data.path is the folder COVID-FL or its parent. Images are 64 x 64 for this small network; FedLD trains a
ResNet-50 on 384 x 384. The setting fedld has the lambda of the paper.
"""

from typing import Any, Literal


def get_config(setting: Literal["fedavg", "fedld"] = "fedavg") -> dict[str, Any]:
    algorithm = {"fedavg": {}, "fedld": {"lam": 0.01}}[setting]
    return {
        "algorithm": {"name": setting, "learning_rate": 0.005, "batch_size": 50, "epochs": 1} | algorithm,
        "model": {"name": "cnn", "channels": (16, 32, 64), "hidden": (128,), "kernel": 3, "norm": "batch"},
        "data": {
            "name": "covid_fl",
            "size": 64,
            "num_clients": 12,
            "partition": {"name": "by_domain"},
            "client_test_fraction": 0.0,
            "standardise": True,
            "augment": {"name": "images", "crop": (0.8, 1.2), "rotation": 10.0, "flip": 0.5},
        },
        "rounds": 200,
    }

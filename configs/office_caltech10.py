"""Office-Caltech-10 with FedBN's split, one client per site.

--config.data.path is the folder office_caltech_10 or its parent. All sites have as many training images as the
smallest, and are tested on their own images; augmentation is that of FedBN's code. Images are 64 x 64 for this small
network; FedBN trains an AlexNet on 256 x 256 with half as many images.
"""

from typing import Any


def get_config() -> dict[str, Any]:
    return {
        "algorithm": {"name": "fedavg", "learning_rate": 0.01, "batch_size": 32, "epochs": 1},
        "model": {"name": "cnn", "channels": (16, 32, 64), "hidden": (128,), "kernel": 3, "norm": "batch"},
        "data": {
            "name": "office_caltech10",
            "size": 64,
            "num_clients": 0,
            "partition": {"name": "by_domain"},
            "local_test": True,
            "equal_train": True,
            "standardise": True,
            "augment": {"name": "images", "rotation": 30.0, "flip": 0.5},
        },
        "rounds": 300,
    }

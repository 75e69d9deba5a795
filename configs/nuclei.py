"""Nuclei segmentation, one client per site.

--config.data.path is a folder with one folder per site, see the source `nuclei`. For arrays in an .npz file
(<site>_images, <site>_masks) set --config.data.name=arrays. Each site is split into 64, 16 and 20 % for training,
validation and test, as HarmoFL's code splits the prostate data; its split of nuclei is not published. The setting
feddg has the local training of FedDG's experiments on fundus images.
"""

from typing import Any, Literal


def get_config(setting: Literal["fedavg", "feddg"] = "fedavg") -> dict[str, Any]:
    algorithm = {
        "fedavg": {},
        "feddg": {"optimizer": "adam", "learning_rate": 1e-3, "momentum": 0.0, "weight_decay": 0.0, "batch_size": 5},
    }[setting]
    return {
        "algorithm": {
            "name": setting,
            "learning_rate": 1e-4,
            "momentum": 0.9,
            "weight_decay": 1e-4,
            "batch_size": 16,
            "epochs": 1,
        }
        | algorithm,
        "model": {"name": "unet"},
        "task_loss": "dice",
        "data": {
            "name": "nuclei",
            "size": 256,
            "num_clients": 6,
            "partition": {"name": "by_domain"},
            "valid_fraction": 0.16,
            "client_test_fraction": 0.2,
            "test_fraction": 0.0,
        },
        "rounds": 500,
    }

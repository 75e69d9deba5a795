"""Chest X-rays, one client per source.

--config.data.path is a folder with <source>/<class>/<image>. For arrays in an .npz file (<source>_images,
<source>_labels) set --config.data.name=arrays. Some patients have several images: split by patient before you trust a
result. The setting fedld has a lambda for these data.
"""

from typing import Any, Literal


def get_config(setting: Literal["fedavg", "fedld"] = "fedavg") -> dict[str, Any]:
    algorithm = {"fedavg": {}, "fedld": {"lam": 0.03}}[setting]
    return {
        "algorithm": {"name": setting, "learning_rate": 0.02, "batch_size": 32, "epochs": 1} | algorithm,
        "model": {"name": "cnn", "channels": (16, 32, 64), "hidden": (128,), "kernel": 3, "norm": "batch"},
        "data": {
            "name": "folders",
            "channels": 1,
            "size": 96,
            "num_clients": 4,
            "partition": {"name": "by_domain"},
            "standardise": True,
        },
        "rounds": 50,
        "evaluate_every": 5,
    }

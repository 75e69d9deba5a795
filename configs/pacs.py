"""PACS: one client per domain, and sketches as the unseen domain.

--config.data.path is the folder with art_painting, cartoon, photo and sketch, or the folder that contains images/,
raw_images/ or PACS/. For a folder with one .npz file per domain set --config.data.name=arrays. Images are 64 x 64 for
this small network, 224 x 224 in most papers. A fifth of each client's images is its test set, which scores personal
models, such as FedBN's, in their own domain.

Settings:
    feddg, harmofl: Pixels in 0..1, since standardised images have no mean amplitude to exchange. The band of FedDG is
        that of FedGA's experiments.
    fedrd: The published setting: ResNet-18 on 224 x 224, initialised from ImageNet weights
        (--config.model.pretrained=resnet18.safetensors). The learning rate is divided by ten after 80 % of the
        rounds. A tenth of each client's examples is for validation, which determines FedRD's weights; PACS' own split
        lists take precedence. The authors train on a subsample that is not published. To leave out each domain in
        turn, use `fedjax-het compare --vary=data.unseen=all`.
"""

from typing import Any, Literal


def get_config(setting: Literal["fedavg", "feddg", "fedrd", "harmofl"] = "fedavg") -> dict[str, Any]:
    if setting == "fedrd":
        return _published()
    return {
        "algorithm": {"name": setting, "learning_rate": 0.02, "batch_size": 32, "epochs": 1}
        | ({"band": 0.1} if setting == "feddg" else {}),
        "model": {"name": "cnn", "channels": (16, 32, 64), "hidden": (128,), "kernel": 3, "norm": "batch"},
        "data": {
            "name": "pacs",
            "size": 64,
            "num_clients": 3,
            "partition": {"name": "by_domain"},
            "unseen": "sketch",
            "client_test_fraction": 0.2,
            "standardise": setting == "fedavg",
        },
        "rounds": 50,
        "evaluate_every": 5,
    }


def _published() -> dict[str, Any]:
    return {
        "algorithm": {
            "name": "fedrd",
            "learning_rate": 1e-3,
            "learning_rate_schedule": {"name": "steps", "milestones": (32,)},
            "momentum": 0.9,
            "weight_decay": 5e-4,
            "batch_size": 16,
            "epochs": 5,
        },
        "model": {"name": "resnet18"},
        "data": {
            "name": "pacs",
            "size": 224,
            "num_clients": 3,
            "partition": {"name": "by_domain"},
            "augment": {
                "name": "images",
                "crop": (0.7, 1.0),
                "flip": 0.5,
                "brightness": 0.4,
                "contrast": 0.4,
                "saturation": 0.4,
                "hue": 0.4,
                "grayscale": 0.1,
            },
            "unseen": "sketch",
            "valid_fraction": 0.1,
            "client_test_fraction": 0.0,
            "test_fraction": 0.0,
            "standardise": True,
        },
        "rounds": 40,
        "evaluate_every": 5,
    }

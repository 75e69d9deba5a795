"""PACS, a domain a client, and sketches as the domain that no client has. Give the data with --config.data.path=...

The path is the folder with art_painting, cartoon, photo and sketch, or the one that holds images/, raw_images/ or
PACS/; for a directory with an .npz file of images a domain set --config.data.name=arrays. Images are 64 x 64 for this
small network, 224 x 224 in most papers. A fifth of each client's images is its own test set, on which models that keep
a part on their client, as FedBN's do, are scored in their own domain.

Settings:
    feddg, harmofl: Pixels in 0..1, because a mean of zero has no amplitude to replace or to share. FedDG's band is that
        of FedGA's authors, who run it on PACS.
    fedrd: The published setting: ResNet-18 on 224 x 224, from ImageNet weights that
        --config.model.pretrained=resnet18.safetensors gives; the rate falls to a tenth after 80 % of the rounds; a
        tenth of a client's examples is for validation, which FedRD weighs clients by. PACS' own split lists go before
        it. The authors' subsample is not published. `fedjax-het compare --vary=data.unseen=all` leaves out each domain
        in turn; --config.algorithm.name=fedavg trains another method in this setting.
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
            "learning_rate_schedule": {"name": "steps", "at": (32,)},
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

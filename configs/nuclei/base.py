"""Nuclei segmentation, a site a client. Give the data with --config.data.path=...

The path is a folder with a folder for each site, see the source `nuclei`; for arrays in an .npz file (<site>_images,
<site>_masks) set --config.data.name=arrays.
"""

from ml_collections import ConfigDict


def base(**algorithm: object) -> ConfigDict:
    """The setting that the files beside this one share; `algorithm` is the table that each fills in."""
    config = ConfigDict()
    config.algorithm = {
        "learning_rate": 1e-4,
        "momentum": 0.9,
        "weight_decay": 1e-4,
        "batch_size": 16,
        "epochs": 1,
    } | algorithm
    config.model = {"name": "unet"}
    config.task_loss = "dice"
    config.data = {"name": "nuclei", "size": 256, "num_clients": 6, "partition": {"name": "by_domain"}}
    config.rounds = 500
    return config

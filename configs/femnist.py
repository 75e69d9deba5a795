"""LEAF's FEMNIST: one client per writer, ten per round.

--config.data.path is LEAF's folder data/femnist after ./preprocess.sh -s niid --sf 0.05 -k 0 -t sample, or its
subfolder data/. The network has the size of LEAF's: two convolutions with 32 and 64 channels, and 2048 hidden units.
"""

from typing import Any


def get_config() -> dict[str, Any]:
    return {
        "algorithm": {"name": "fedavg", "learning_rate": 0.06, "batch_size": 10, "epochs": 1},
        "model": {"name": "cnn", "channels": (32, 64), "hidden": (2048,)},
        "data": {"name": "femnist", "num_clients": 0, "partition": {"name": "by_domain"}},
        "rounds": 200,
        "cohort_size": 10,
    }

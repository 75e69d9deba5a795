"""LEAF's Shakespeare: one client per role, ten per round, with the network and the settings of FedProx.

--config.data.path is LEAF's folder data/shakespeare after ./preprocess.sh -s niid --sf 0.2 -k 0 -t sample -tf 0.8, or
its subfolder data/.
"""

from typing import Any, Literal


def get_config(setting: Literal["fedavg", "fedprox"] = "fedavg") -> dict[str, Any]:
    algorithm = {"fedavg": {}, "fedprox": {"mu": 0.001}}[setting]
    return {
        "algorithm": {"name": setting, "learning_rate": 0.8, "batch_size": 10, "epochs": 1} | algorithm,
        "model": {"name": "lstm", "hidden": (256, 256), "embedding": 8, "outputs": "last"},
        "data": {"name": "shakespeare", "num_clients": 0, "partition": {"name": "by_domain"}},
        "rounds": 40,
        "cohort_size": 10,
    }

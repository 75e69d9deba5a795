"""Fed-Heart-Disease in FLamby's setting: a hospital per client, logistic regression, 15 rounds of 100 steps of 4
patients. Give the data with --config.data.path=...

The path is the folder of processed.cleveland.data and its three siblings. Every hospital is tested on its own patients:
clients/accuracy_mean is the mean over hospitals that FLamby's figures show, over the five seeds that it publishes. Two
logits stand for its single one, so that half its rate makes the same steps; --config.model.hidden=16 for a network.
"""

from typing import Any, Literal


def get_config(setting: Literal["fedavg", "fedprox"] = "fedavg") -> dict[str, Any]:
    algorithm = {"fedavg": {}, "fedprox": {"mu": 0.01}}[setting]
    return {
        "algorithm": {"name": setting, "learning_rate": 0.0005, "batch_size": 4, "epochs": None, "steps": 100}
        | algorithm,
        "model": {"name": "mlp", "hidden": ()},
        "data": {"name": "heart_disease", "num_clients": 0, "partition": {"name": "by_domain"}, "local_test": True},
        "rounds": 15,
        "evaluate_every": 5,
        "num_seeds": 5,
        "seed": 42,
    }

"""Fed-Heart-Disease in FLamby's setting: one client per hospital, logistic regression, 15 rounds of 100 steps on 4
patients.

--config.data.path is the folder with processed.cleveland.data and the files of the other three hospitals. Each
hospital is tested on its own patients: clients/accuracy_mean is the mean over hospitals that FLamby's figures show,
over FLamby's five seeds. There are two logits where FLamby has one; half its learning rate gives the same steps. For a
network set --config.model.hidden=16.
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

"""Fed-TCGA-BRCA in FLamby's setting: one client per region, a linear Cox model, 5 rounds of 100 steps on 8 patients.

--config.data.path is FLamby's folder fed_tcga_brca, or a folder with brca.csv and train_test_split.csv. Each region is
tested on its own patients: clients/accuracy_mean is the mean C-index of the regions, over FLamby's five seeds. There
are two logits where FLamby has one; half its learning rate gives the same steps.
"""

from typing import Any, Literal


def get_config(setting: Literal["fedavg", "fedprox"] = "fedavg") -> dict[str, Any]:
    algorithm = {"fedavg": {}, "fedprox": {"mu": 0.1}}[setting]
    return {
        "algorithm": {"name": setting, "learning_rate": 0.05, "batch_size": 8, "epochs": None, "steps": 100}
        | algorithm,
        "model": {"name": "mlp", "hidden": ()},
        "task_loss": "cox",
        "data": {"name": "tcga_brca", "num_clients": 0, "partition": {"name": "by_domain"}, "local_test": True},
        "rounds": 5,
        "evaluate_every": 1,
        "num_seeds": 5,
        "seed": 42,
    }

"""Fed-TCGA-BRCA in FLamby's setting: a region per client, a linear Cox model, 5 rounds of 100 steps of 8 patients. Give
the data with --config.data.path=...

The path is FLamby's folder fed_tcga_brca, or one with brca.csv and train_test_split.csv. Every region is tested on its
own patients: clients/accuracy_mean is the mean C-index of the regions, over the five seeds that FLamby publishes. Two
logits stand for its single one, so that half its rate makes the same steps.
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

"""The progression of diabetes of 442 patients as a number, or as one of four ranks; five clients, ranges of it.

The setting "ranks" distributes ranks by Dirichlet(0.5). No files are needed: the data come with scikit-learn.
"""

from typing import Any, Literal


def get_config(setting: Literal["numbers", "ranks"] = "numbers") -> dict[str, Any]:
    data = {
        "numbers": {"standardise_targets": "common", "partition": {"name": "by_quantile"}},
        "ranks": {"grades": 4, "partition": {"name": "dirichlet", "alpha": 0.5}},
    }[setting]
    return {
        "algorithm": {"name": "fedavg", "learning_rate": 0.01, "batch_size": 16, "epochs": 2},
        "model": {"name": "mlp", "hidden": (16,)},
        "data": {"name": "diabetes", "num_clients": 5, "standardise": True} | data,
        "rounds": 50,
        "evaluate_every": 5,
    }

"""FedLD on scikit-learn's digits: 20 clients with two or three classes each, ten per round."""

from typing import Any


def get_config() -> dict[str, Any]:
    return {
        "algorithm": {"name": "fedld", "learning_rate": 0.1, "batch_size": 16, "epochs": 2},
        "model": {"name": "mlp", "hidden": (64,)},
        "data": {"name": "digits", "num_clients": 20, "partition": {"name": "dirichlet", "alpha": 0.1}},
        "rounds": 100,
        "cohort_size": 10,
    }

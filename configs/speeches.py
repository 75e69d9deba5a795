"""Whole speeches of Shakespeare's roles, a small LSTM that predicts every character. Give the data with
--config.data.path=...

The path is a JSON file {role: [speech, ...]}, .json or .json.gz. It trains in minutes on a CPU; for a transformer set
--config.model.name=transformer --config.algorithm.learning_rate=0.1.
"""

from typing import Any


def get_config() -> dict[str, Any]:
    return {
        "algorithm": {"name": "fedavg", "learning_rate": 2.0, "batch_size": 10, "epochs": 1},
        "model": {"name": "lstm", "hidden": (64,), "embedding": 16, "outputs": "every"},
        "data": {"name": "texts", "num_clients": 0, "min_examples": 20, "partition": {"name": "by_domain"}},
        "rounds": 100,
        "cohort_size": 10,
        "evaluate_every": 20,
    }

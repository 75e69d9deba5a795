"""Whole speeches of Shakespeare's roles: a small LSTM that predicts every character.

--config.data.path is a JSON file {role: [speech, ...]}, .json or .json.gz. Training takes minutes on a CPU. For a
transformer set --config.model.name=transformer --config.algorithm.learning_rate=0.1.
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

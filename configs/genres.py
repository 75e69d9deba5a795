"""Genres of plays from speeches of tiny Shakespeare: a client per role, all of whose speeches have the same genre.

--config.data.path is the folder that `python -m experiments.genres` writes; --config.data.tokenizer is a
tokenizer.json. Each role is tested on its own last speeches.
"""

from typing import Any


def get_config() -> dict[str, Any]:
    return {
        "algorithm": {"name": "fedavg", "learning_rate": 1.0, "batch_size": 10, "epochs": 1},
        "model": {"name": "lstm", "hidden": (64,), "embedding": 32},
        "data": {
            **{"name": "huggingface", "text": "text", "label": "genre", "domain": "role", "max_length": 64},
            **{"min_examples": 20, "num_clients": 0, "partition": {"name": "by_domain"}, "local_test": True},
        },
        "rounds": 100,
        "cohort_size": 10,
        "evaluate_every": 20,
    }

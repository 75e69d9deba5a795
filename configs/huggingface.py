"""Files of the Hugging Face hub: texts with classes, images with classes, or instructions with answers.

--config.data.path is a folder of save_to_disk, of Parquet, CSV or JSON files, or a file. Texts need
--config.data.tokenizer, a tokenizer.json. Set --config.data.domain to the column of clients, with
--config.data.num_clients=0 and --config.data.partition.name=by_domain. The setting instructions has the columns of
Dolly, with a client per category.
"""

from typing import Any, Literal


def get_config(setting: Literal["texts", "images", "instructions"] = "texts") -> dict[str, Any]:
    model = {
        "texts": {"name": "lstm", "hidden": (64,), "embedding": 32},
        "images": {"name": "cnn"},
        "instructions": {"name": "transformer", "features": 64},
    }[setting]
    partition = {"num_clients": 10, "partition": {"name": "dirichlet", "alpha": 0.5}}
    if setting == "instructions":
        partition = {"num_clients": 0, "partition": {"name": "by_domain"}, "domain": "category", "answer": "response"}
    return {
        "algorithm": {"name": "fedavg", "learning_rate": 0.1, "batch_size": 16, "epochs": 1},
        "model": model,
        "data": {"name": "huggingface", **partition},
        "rounds": 50,
        "evaluate_every": 5,
    }

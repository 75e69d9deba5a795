"""FedAvg on whole speeches, a small LSTM that predicts every character. Give the data with --config.data.path=...

The path is a JSON file {role: [speech, ...]}, .json or .json.gz. It trains in minutes on a CPU; for a transformer set
--config.model.name=transformer --config.algorithm.learning_rate=0.1.
"""

from ml_collections import ConfigDict


def get_config() -> ConfigDict:
    config = ConfigDict()
    config.algorithm = {"name": "fedavg", "learning_rate": 2.0, "batch_size": 10, "epochs": 1}
    config.model = {"name": "lstm", "hidden": (64,), "embedding": 16, "outputs": "every"}
    config.data = {"name": "texts", "num_clients": 0, "min_examples": 20, "partition": {"name": "by_domain"}}
    config.rounds = 100
    config.cohort_size = 10
    config.evaluate_every = 20
    return config

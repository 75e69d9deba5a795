"""FedLD on scikit-learn's digits: twenty clients that have two or three classes each, ten of them a round."""

from ml_collections import ConfigDict


def get_config() -> ConfigDict:
    config = ConfigDict()
    config.algorithm = {"name": "fedld", "learning_rate": 0.1, "batch_size": 16, "epochs": 2}
    config.model = {"name": "mlp", "hidden": (64,)}
    config.data = {"name": "digits", "num_clients": 20, "partition": {"name": "dirichlet", "alpha": 0.1}}
    config.rounds = 100
    config.cohort_size = 10
    return config

"""Fashion-MNIST with label skew: 100 clients, ten per round.

--config.data.path is an .npz file with train_images, train_labels, test_images and test_labels, or a folder with the
four idx files. For data prepared by TensorFlow Datasets set --config.data.name=tfds
--config.data.builder=fashion_mnist.

SCAFFOLD has a lower learning rate: at 0.05, with ten of 100 clients per round, control variates become stale between
two rounds of a client, and training collapses after about 90 rounds.
"""

from typing import Any, Literal


def get_config(setting: Literal["fedavg", "fedld", "fedprox", "scaffold"] = "fedavg") -> dict[str, Any]:
    algorithm = {"fedavg": {}, "fedld": {"lam": 0.03}, "fedprox": {"mu": 0.01}, "scaffold": {"learning_rate": 0.02}}[
        setting
    ]
    return {
        "algorithm": {"name": setting, "learning_rate": 0.05, "batch_size": 50, "epochs": 1} | algorithm,
        "model": {"name": "cnn", "channels": (8, 16), "hidden": (64,)},
        "data": {"name": "arrays", "num_clients": 100, "partition": {"name": "dirichlet", "alpha": 0.5}},
        "rounds": 200,
        "cohort_size": 10,
    }

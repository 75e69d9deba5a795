"""Fashion-MNIST among 100 clients with skewed classes, ten a round. Give the data with --config.data.path=...

The path is a .npz file with train_images, train_labels, test_images and test_labels, or a directory with the four idx
files; for data that TensorFlow Datasets has prepared set --config.data.name=tfds --config.data.builder=fashion_mnist.
"""

from ml_collections import ConfigDict


def base(**algorithm: object) -> ConfigDict:
    """The setting that the files beside this one share; `algorithm` is the table that each fills in."""
    config = ConfigDict()
    config.algorithm = {"learning_rate": 0.05, "batch_size": 50, "epochs": 1} | algorithm
    config.model = {"name": "cnn", "channels": (8, 16), "hidden": (64,)}
    config.data = {"name": "arrays", "num_clients": 100, "partition": {"name": "dirichlet", "alpha": 0.5}}
    config.rounds = 200
    config.cohort_size = 10
    return config

"""Shakespeare of LEAF, a role per client, with the network and sizes of FedProx. Give the data with
--config.data.path=...

The path is LEAF's folder data/shakespeare, after ./preprocess.sh -s niid --sf 0.2 -k 0 -t sample -tf 0.8, or its folder
data/. Ten roles are asked per round; batches, rate and layers are those of FedProx.
"""

from ml_collections import ConfigDict


def base(**algorithm: object) -> ConfigDict:
    """The setting that the files beside this one share; `algorithm` is the table that each fills in."""
    config = ConfigDict()
    config.algorithm = {"learning_rate": 0.8, "batch_size": 10, "epochs": 1} | algorithm
    config.model = {"name": "lstm", "hidden": (256, 256), "embedding": 8, "outputs": "last"}
    config.data = {"name": "shakespeare", "num_clients": 0, "partition": {"name": "by_domain"}}
    config.rounds = 40
    config.cohort_size = 10
    return config

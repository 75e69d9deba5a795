"""Fed-TCGA-BRCA in FLamby's setting: a region per client, a linear Cox model, 5 rounds of 100 steps of 8 patients. Give
the data with --config.data.path=...

The path is FLamby's folder fed_tcga_brca, or one with brca.csv and train_test_split.csv. Every region is tested on its
own patients: clients/accuracy_mean is the mean C-index of the regions, over the five seeds that FLamby publishes. Two
logits stand for its single one, so that half its rate makes the same steps.
"""

from ml_collections import ConfigDict


def base(**algorithm: object) -> ConfigDict:
    """The setting that the files beside this one share; `algorithm` is the table that each fills in."""
    config = ConfigDict()
    config.algorithm = {"learning_rate": 0.05, "batch_size": 8, "epochs": None, "steps": 100} | algorithm
    config.model = {"name": "mlp", "hidden": ()}
    config.task_loss = "cox"
    config.data = {"name": "tcga_brca", "num_clients": 0, "partition": {"name": "by_domain"}, "local_test": True}
    config.rounds = 5
    config.evaluate_every = 1
    config.num_seeds = 5
    config.seed = 42
    return config

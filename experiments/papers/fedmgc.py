"""FedMGC's experiments: Wang et al., Joint Focal Loss and Dominant Gradient Correction for Gradient Conflict.

python -m experiments.papers fedmgc --what=fig12 --scale=cpu --data=cifar10=cifar10.npz --data=fmnist=fmnist.npz
"""

from collections.abc import Mapping
from types import MappingProxyType

from fedjax_het.cli.runs.records import flatten

from ..figures import Draw, plot_class_shares, plot_columns, plot_diagnostics, plot_rounds
from ..measures import mean_class_loss, mean_quantity, read_final, read_largest_share, read_last
from ..spec import Experiment, Measure, Scale, Settings, make_smoke_scale

CE = {"algorithm.name": "fedavg"}
METHODS = {
    "FedAvg": CE,
    "FedProx": {"algorithm.name": "fedprox"},
    "FedNova": {"algorithm.name": "fednova"},
    "FedMGC": {"algorithm.name": "fedmgc"},
}
ABLATION = {
    "FedAvg (ce)": CE,
    "FedProx (ce)": METHODS["FedProx"],
    "FedAvg (ce) + DGC": {"algorithm.name": "fedavg_dgc"},
    "FedProx (ce) + DGC": {"algorithm.name": "fedprox_dgc"},
    "FedMGC": METHODS["FedMGC"],
}
_THREE_DENSE = flatten(
    {"model": {"name": "lenet", "channels": "(6, 16)", "kernel": "5", "padding": "VALID", "hidden": "(120, 84)"}}
)
_ONE_DENSE = flatten({"model": {"name": "cnn", "channels": "(16, 32)", "padding": "SAME", "hidden": "()"}})
_COMMON = _THREE_DENSE | flatten(
    {
        "data.partition": {"name": "dirichlet", "equal_sizes": "True"},
        # Accuracy is measured on the data set's own test split.
        "data": {"valid_fraction": "0.0", "client_test_fraction": "0.0"},
    }
)
_PAPER = _COMMON | flatten(
    {
        "algorithm": {"learning_rate": "0.001", "momentum": "0.0", "weight_decay": "0.0"},
        "algorithm.batch_size": "128",
        "algorithm.epochs": "10",
        "rounds": "400",
        "num_seeds": "3",
    }
)
_CPU = _COMMON | flatten(
    {
        "data.name": "arrays",
        "algorithm": {"learning_rate": "0.05", "epochs": "2"},
        "rounds": "60",
        "evaluate_every": "5",
    }
)
_REDUCTION = (
    "2 local epochs at a rate of .05 in batches of 50 for 10 at .001 in batches of 128, 60 rounds for 400, one seed"
)
_DATA = {"cifar10": "CIFAR-10's .npz file", "fmnist": "Fashion-MNIST's .npz file"}
DATASETS = {
    "CIFAR-10": {"data.path": "{cifar10}"},
    "FMNIST": {"data.path": "{fmnist}", **_ONE_DENSE},
}
_TFDS = {
    "CIFAR-100": {"data.builder": "cifar100"},
    "CIFAR-10": {"data.builder": "cifar10"},
    "FMNIST": {"data.builder": "fashion_mnist", **_ONE_DENSE},
}
NO_VALUES = (
    "The figures' values are not printed.",
    "The abstract's leads on CIFAR-10 (3.88, 1.7, 1.31) are not those of Fig. 12 (at most 6.56, 5.50, 5.19).",
)
_UNSTATED = (
    "Not in the paper: the networks' widths; here LeNet's 6 and 16 channels of 5 x 5 and dense layers of 120 and "
    "84 before the classifier on CIFAR, 16 and 32 channels and the classifier alone on Fashion-MNIST.",
    "Not in the paper: the focal loss's gamma and beta, tuned for each data set among .1, .2, .5, 1 and 1, 1.2, "
    "1.5, 2; here .5 and 1.5. The share lambda of dominant gradients outside Fig. 7; here .5, which is best there.",
    "Not in the paper: FedProx's mu, here .01; momentum and weight decay, here 0; how many rounds, here 400, "
    "where FedMGC is said to be stable in Fig. 12; how many seeds, here 3.",
)


def make_experiment(
    title: str,
    rows: Mapping[str, Settings],
    draw: Draw,
    alpha: str,
    *,
    measures: Mapping[str, Measure] = MappingProxyType({"accuracy": read_final("test/accuracy")}),
    columns: Mapping[str, Settings] = MappingProxyType({"CIFAR-10": {}}),
    has_all_datasets: bool = False,
    settings: Settings = MappingProxyType({}),
    caveats: tuple[str, ...] = NO_VALUES,
) -> Experiment:
    """Make the experiment of a figure.

    Args:
        title: the title of the figure.
        rows: its rows.
        draw: the function that draws its picture.
        alpha: the alpha of the Dirichlet partition.
        measures: its measures.
        columns: the settings that vary on CIFAR-10.
        has_all_datasets: whether the data sets vary instead.
        settings: the settings of all runs.
        caveats: the caveats besides those of all figures.
    """
    common = {"data.partition.alpha": alpha, **settings}
    array_columns, published, needed = DATASETS, _TFDS, _DATA
    if not has_all_datasets:
        array_columns = {name: {**DATASETS["CIFAR-10"], **column} for name, column in columns.items()}
        published = {name: {**_TFDS["CIFAR-10"], **column} for name, column in columns.items()}
        needed = {"cifar10": _DATA["cifar10"]}
    return Experiment(
        title=title,
        rows=rows,
        measures=measures,
        scales={
            "smoke": make_smoke_scale(dict(list(columns.items())[:1]), {**common, "data.num_clients": "5"}),
            "cpu": Scale("cifar10", {**_CPU, **common}, array_columns, _REDUCTION, needed),
            "paper": Scale("cifar10", {**_PAPER, **common}, published),
        },
        draw=draw,
        caveats=(*caveats, *_UNSTATED),
    )


_ALPHAS = {alpha: {"data.partition.alpha": alpha} for alpha in ("0.01", "0.1", "0.5", "1.0", "10.0")}
_TWO_METHODS: dict[str, Settings] = {"FedAvg (ce)": CE, "FedMGC": METHODS["FedMGC"]}
_SCHEDULE = {"diagnose_every": "5"}
_MAJORITY, _MINORITY = slice(0, 2), slice(-2, None)
CLIENTS = {
    "fig5": make_experiment(
        "FedMGC, Fig. 5: share of a client's examples by class, %",
        {"CIFAR-10": CE},
        plot_class_shares,
        "1.0",
        measures={"largest share, mean over clients": read_largest_share},
        columns=_ALPHAS,
        settings={"rounds": "1"},
        caveats=("Not in the paper: the panels' alphas.",),
    ),
    "fig8": make_experiment(
        "FedMGC, Fig. 8: cross-entropy of a client's trained model on its two largest and two smallest classes",
        _TWO_METHODS,
        plot_diagnostics(
            {"majority": mean_class_loss(_MAJORITY), "minority": mean_class_loss(_MINORITY)}, "cross-entropy"
        ),
        "1.0",
        measures={
            "majority, last snapshot": read_last(mean_class_loss(_MAJORITY)),
            "minority, last snapshot": read_last(mean_class_loss(_MINORITY)),
        },
        settings={"diagnostics": "classes", **_SCHEDULE},
        caveats=(
            "The paper shows one client with 148 and 113 examples of its largest classes, 5 and 10 of its smallest; "
            "here it is the mean over the clients of a round.",
        ),
    ),
    "fig9": make_experiment(
        "FedMGC, Fig. 9: gradient projection outliers p_i, mean over clients, against rounds",
        {name: METHODS[name] for name in ("FedMGC", "FedAvg", "FedProx")},
        plot_diagnostics({"": mean_quantity("conflict", "agreement")}, "conflict: agreement"),
        "1.0",
        measures={
            "p_i, last snapshot": read_last(mean_quantity("conflict", "agreement")),
            "p_i over the mean length": read_last(mean_quantity("conflict", "relative_agreement")),
            "pairs in conflict": read_last(mean_quantity("conflict", "num_conflicts")),
        },
        settings={"diagnostics": "conflict", **_SCHEDULE},
    ),
}

_ALL_CLIENTS = {"data.num_clients": "10", "cohort_size": "0"}
_RATIOS = {ratio: {"algorithm.fraction": ratio} for ratio in ("0.1", "0.3", "0.5", "0.7", "0.9")}
ACCURACY = {
    "fig6": make_experiment("FedMGC, Fig. 6: ablation, test accuracy against rounds", ABLATION, plot_rounds(), "1.0"),
    "fig7": make_experiment(
        "FedMGC, Fig. 7: test accuracy by the share of dominant gradients",
        {"FedMGC": METHODS["FedMGC"]},
        plot_columns("lambda", "linear"),
        "0.5",
        columns=_RATIOS,
    ),
    "fig10": make_experiment(
        "FedMGC, Fig. 10: everyone takes part, test accuracy against rounds",
        {"SCAFFOLD": {"algorithm.name": "scaffold"}, **METHODS},
        plot_rounds(),
        "0.5",
        settings=_ALL_CLIENTS,
    ),
    "fig11": make_experiment(
        "FedMGC, Fig. 11: test accuracy, alpha .5", METHODS, plot_rounds(), "0.5", has_all_datasets=True
    ),
    "fig12": make_experiment(
        "FedMGC, Fig. 12: test accuracy, alpha 1", METHODS, plot_rounds(), "1.0", has_all_datasets=True
    ),
}

EXPERIMENTS = {**CLIENTS, **ACCURACY}

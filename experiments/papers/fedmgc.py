"""FedMGC's experiments: Wang et al., Joint Focal Loss and Dominant Gradient Correction for Gradient Conflict.

python -m experiments.papers.fedmgc --what=fig12 --scale=cpu --data=cifar10=cifar10.npz --data=fmnist=fmnist.npz
"""

import sys

from experiments.papers.command import main
from experiments.papers.figures import Draw, curves, over_looks, sweep
from experiments.papers.measures import Measure, final, looked
from experiments.papers.plan import Experiment, Scale, Settings, smoke

_CE = {"algorithm.name": "fedavg"}
METHODS = {
    "FedAvg": _CE,
    "FedProx": {"algorithm.name": "fedprox"},
    "FedNova": {"algorithm.name": "fednova"},
    "FedMGC": {"algorithm.name": "fedmgc"},
}
ABLATION = {
    "FedAvg (ce)": _CE,
    "FedProx (ce)": METHODS["FedProx"],
    "FedAvg (ce) + DGC": {"algorithm.name": "fedavg_dgc"},
    "FedProx (ce) + DGC": {"algorithm.name": "fedprox_dgc"},
    "FedMGC": METHODS["FedMGC"],
}
_PARTITION = {"data.partition.name": "dirichlet", "data.partition.equal_sizes": "True"}
_PAPER = {
    **_PARTITION,
    "algorithm.learning_rate": "0.001",
    "algorithm.batch_size": "128",
    "algorithm.epochs": "10",
    "rounds": "400",
    "num_seeds": "3",
}
_CPU = {
    **_PARTITION,
    "data.name": "arrays",
    "algorithm.learning_rate": "0.05",
    "algorithm.epochs": "2",
    "rounds": "60",
    "evaluate_every": "5",
    "model.channels": "(8, 16)",
}
_REDUCED = (
    "a network of 8 and 16 channels (the paper tells none), 2 local epochs at a rate of .05 in batches of 50 for 10 at "
    ".001 in batches of 128, 60 rounds for 400, one seed"
)
_DATA = {"cifar10": "CIFAR-10's .npz file", "fmnist": "Fashion-MNIST's .npz file"}
_SETS = {"CIFAR-10": {"data.path": "{cifar10}"}, "FMNIST": {"data.path": "{fmnist}"}}
_TFDS = {
    "CIFAR-100": {"data.builder": "cifar100"},
    "CIFAR-10": {"data.builder": "cifar10"},
    "FMNIST": {"data.builder": "fashion_mnist"},
}
_NO_VALUES = (
    "The figures' values are not printed; gamma and beta were tuned for each data set and are not told.",
    "The abstract's leads on CIFAR-10 (3.88, 1.7, 1.31) are not those of Fig. 12 (at most 6.56, 5.50, 5.19).",
)


def _figure(
    title: str,
    rows: dict[str, Settings],
    draw: Draw,
    alpha: str,
    *,
    measures: dict[str, Measure] | None = None,
    sets: tuple[str, ...] = ("CIFAR-10",),
    columns: dict[str, Settings] | None = None,
    besides: Settings = {},  # noqa: B006
) -> Experiment:
    """columns: what is varied on CIFAR-10, where it is not the data set.   besides: set in all runs."""
    common = {"data.partition.alpha": alpha, **besides}
    on_arrays = {name: of_set for name, of_set in _SETS.items() if name in sets}
    cifar = {name: {**_SETS["CIFAR-10"], **of_column} for name, of_column in (columns or {}).items()}
    names = [name for name in _DATA if f"{{{name}}}" in str(cifar or on_arrays)]
    published = _TFDS if len(sets) > 1 else {name: _TFDS[name] for name in sets}
    first = dict(list((columns or {name: {} for name in sets}).items())[:1])
    return Experiment(
        title=title,
        rows=rows,
        measures=measures or {"accuracy": final("test/accuracy")},
        scales={
            "smoke": smoke(first, {**common, "data.num_clients": "5"}),
            "cpu": Scale(
                "cifar10/fedavg.py",
                {**_CPU, **common},
                cifar or on_arrays,
                _REDUCED,
                {name: _DATA[name] for name in names},
            ),
            "paper": Scale("cifar10/fedavg.py", {**_PAPER, **common}, columns or published),
        },
        draw=draw,
        doubts=_NO_VALUES,
    )


_EVERYONE = {"data.num_clients": "10", "cohort_size": "0"}
_OUTLIERS = {"diagnostics": "conflict", "diagnose_every": "5"}
_BOTH = ("CIFAR-10", "FMNIST")
_RATIOS = {ratio: {"algorithm.fraction": ratio} for ratio in ("0.1", "0.3", "0.5", "0.7", "0.9")}
EXPERIMENTS = {
    "fig6": _figure("FedMGC, Fig. 6: ablation, test accuracy against rounds", ABLATION, curves(), "1.0"),
    "fig7": _figure(
        "FedMGC, Fig. 7: test accuracy by the share of dominant gradients",
        {"FedMGC": METHODS["FedMGC"]},
        sweep("lambda", "linear"),
        "0.5",
        columns=_RATIOS,
    ),
    "fig9": _figure(
        "FedMGC, Fig. 9: gradient projection outliers p_i, mean over clients, against rounds",
        {name: METHODS[name] for name in ("FedMGC", "FedAvg", "FedProx")},
        over_looks("conflict", "agreement"),
        "1.0",
        measures={
            "p_i, last look": looked("conflict", "agreement", -1),
            "p_i over the mean length": looked("conflict", "relative_agreement", -1),
            "pairs in conflict": looked("conflict", "num_conflicts", -1),
        },
        besides=_OUTLIERS,
    ),
    "fig10": _figure(
        "FedMGC, Fig. 10: everyone takes part, test accuracy against rounds",
        {"SCAFFOLD": {"algorithm.name": "scaffold"}, **METHODS},
        curves(),
        "0.5",
        besides=_EVERYONE,
    ),
    "fig11": _figure("FedMGC, Fig. 11: test accuracy, alpha .5", METHODS, curves(), "0.5", sets=_BOTH),
    "fig12": _figure("FedMGC, Fig. 12: test accuracy, alpha 1", METHODS, curves(), "1.0", sets=_BOTH),
}

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], "fedmgc", EXPERIMENTS))

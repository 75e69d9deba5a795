"""Tables 2, 4 and 5 and the figures: PACS."""

from experiments.papers.fedrd.methods import ABLATION, AVERAGE, BOTH, METHODS, SMOKE, WEAK, unseen_domains
from experiments.papers.figures import Draw, curves, sweep
from experiments.papers.measures import unseen
from experiments.papers.plan import Experiment, Printed, Scale, Settings

_PACS = unseen_domains("photo", "art_painting", "cartoon", "sketch")
_SMALL = {
    "data.name": "arrays",
    "data.path": "{pacs}",
    "data.size": "32",
    "model.name": "cnn",
    "model.channels": "(16, 32, 64)",
    "model.hidden": "(128,)",
    "model.kernel": "3",
    "model.norm": "batch",
    "algorithm.learning_rate": "0.05",
    "algorithm.momentum": "0.0",
    "algorithm.batch_size": "32",
    "algorithm.epochs": "2",
    "evaluate_every": "4",
}


def _cpu(rounds: int, epochs: str) -> Scale:
    words = (
        "images of 32 x 32 for 224 x 224, a network of three convolutions that starts afresh for a ResNet-18 that was "
        f"trained before, {rounds} rounds {epochs}, plain SGD at .05 in batches of 32, one seed"
    )
    needed = {"pacs": "the folder with an .npz file of images a domain"}
    return Scale("pacs/fedrd.py", {**_SMALL, "rounds": str(rounds)}, _PACS, words, needed)


_CPU = _cpu(20, "of 2 epochs for 40 of 5")
_PAPER = Scale("pacs/fedrd.py", {"data.path": "{pacs}", "num_seeds": "3"}, _PACS, "", {"pacs": "the folder PACS"})
_ALPHAS = {alpha: {"data.partition.alpha": alpha, "data.unseen": "art_painting"} for alpha in ("0.1", "0.5", "1", "10")}
_SMOKE_ALPHA = {"1": {"data.partition.alpha": "1", "data.unseen": "inverted"}}


def _table(
    title: str,
    rows: dict[str, Settings],
    printed: Printed,
    *,
    cpu: Scale = _CPU,
    doubts: tuple[str, ...] = (),
    draw: Draw | None = None,
) -> Experiment:
    """On PACS."""
    return Experiment(
        title=title,
        rows=rows,
        measures={"accuracy": unseen()},
        scales={"smoke": SMOKE, "cpu": cpu, "paper": _PAPER},
        printed={"accuracy": printed} if printed else {},
        average=AVERAGE,
        doubts=(*doubts, *WEAK),
        draw=draw,
    )


ON_PACS = {
    "table2": _table(
        "FedRD, Table 2: PACS, accuracy on the domain left out, %",
        METHODS,
        {
            "FedAvg": (80.98, 54.83, 55.29, 54.83, 64.64),
            "FedProx": (81.14, 53.03, 61.77, 71.38, 66.83),
            "Scaffold": (83.59, 51.95, 61.24, 70.82, 66.90),
            "FedSR": (85.87, 53.22, 61.95, 73.56, 68.65),
            "FedBN": (84.23, 52.83, 62.19, 72.36, 67.90),
            "FedGA": (86.28, 58.89, 56.31, 73.94, 69.35),
            "FedIIR": (85.26, 54.58, 62.50, 74.45, 68.53),
            "FedRD": (89.98, 59.63, 62.07, 74.37, 71.52),
        },
        doubts=("FedAvg's S is its A again; its average implies 67.46.",),
    ),
    "table4": _table(
        "FedRD, Table 4: local epochs, PACS, accuracy on the domain left out, %",
        {f"E={e} {name}": {**of, "algorithm.epochs": e} for e in ("1", "5", "10") for name, of in BOTH.items()},
        {
            "E=1 FedAvg": (83.23, 52.83, 60.20, 71.37, 66.91),
            "E=1 FedRD": (87.13, 57.83, 61.19, 70.29, 68.80),
            "E=5 FedAvg": (80.98, 54.83, 55.29, 54.83, 64.64),
            "E=5 FedRD": (89.98, 59.63, 62.07, 74.37, 71.52),
            "E=10 FedAvg": (83.11, 55.52, 60.67, 68.21, 66.88),
            "E=10 FedRD": (88.14, 58.73, 61.51, 75.10, 70.87),
        },
        cpu=_cpu(12, "for 40"),
        doubts=("With one epoch lambda is 0 and the debiased classifier does nothing.",),
    ),
    "table5": _table(
        "FedRD, Table 5: ablation, PACS, accuracy on the domain left out, %",
        ABLATION,
        {
            "w/o DC": (88.02, 57.57, 54.22, 72.99, 68.20),
            "w/o GGA": (83.23, 52.83, 60.19, 71.37, 66.91),
            "full": (89.98, 59.63, 62.07, 74.37, 71.52),
        },
        doubts=("The row w/o GGA is FedAvg's with one epoch to .01, so not comparable with five epochs of the rest.",),
    ),
    "fig3": _table("FedRD, Fig. 3: accuracy on the domain left out against rounds", BOTH, {}, draw=curves("unseen")),
    "fig5": Experiment(
        title="FedRD, Fig. 5: classes spread unevenly over clients, PACS without art painting, accuracy on it, %",
        rows=METHODS,
        measures={"accuracy": unseen()},
        scales={
            name: scale._replace(common={**scale.common, "data.partition.name": "dirichlet"}, columns=columns)
            for name, scale, columns in (
                ("smoke", SMOKE, _SMOKE_ALPHA),
                ("cpu", _CPU, _ALPHAS),
                ("paper", _PAPER, _ALPHAS),
            )
        },
        doubts=(
            "What is varied, and the figure's values, are not told; here it is the alpha of a Dirichlet division of "
            "the other domains' examples, classes by client.",
            *WEAK,
        ),
        draw=sweep("alpha"),
    ),
    "fig6": _table("FedRD, Fig. 6: ablation, accuracy against rounds", ABLATION, {}, draw=curves("unseen")),
}

"""HarmoFL's experiments: Jiang et al., HarmoFL: Harmonizing Local and Global Drifts, AAAI 2022.

python -m experiments.papers.harmofl --what=table1-nuclei --scale=cpu --data=nuclei.npz --workdir=runs/harmofl
"""

import sys
from collections.abc import Mapping

from .command import main
from .figures import Draw, plot_columns, plot_landscapes, plot_rounds
from .harmofl_segmentation import FIGURE_4, NUCLEI_TABLE, PROSTATE_TABLE
from .harmofl_settings import (
    AVERAGE,
    BASELINES,
    CAMELYON,
    CAMELYON_DATA,
    CAMELYON_REDUCTION,
    CNN_NETWORK,
    DIGITS,
    LETTERS,
    MAIN_METHODS,
    METHODS,
    NETWORKS,
    PARTS,
    RELEASED_CODE,
    SELECTED,
    X_RAY_DATA,
    X_RAYS,
    diagnose_at_end,
)
from .measures import read_client_score, read_loss_rise, read_mean_client_score, read_minimum_distance
from .spec import Experiment, Scale, Settings, make_smoke_scale

SPLIT = (
    "The authors' lists of training and test patches are not those of WILDS' table, which are read here; a fifth of a "
    "hospital's training patches is for validation, as in their code, but of both classes alike."
)
_HOSPITALS = {letter: {} for letter in "ABCDE"}
TABLE_2 = Experiment(
    title=f"HarmoFL, Table 2: Camelyon17, accuracy of each hospital's own test patches, %, {SELECTED}",
    rows=METHODS,
    measures={"accuracy": read_client_score("accuracy", is_selected=True)},
    scales={
        "smoke": make_smoke_scale({"client_000": {}}, DIGITS, CNN_NETWORK),
        "cpu": Scale(
            "chest_xray/fedavg.py",
            X_RAYS,
            {"ieee8023": {}, "figure1": {}, "actualmed": {}, "kermany": {}},
            CAMELYON_REDUCTION,
            X_RAY_DATA,
        ),
        "paper": Scale("camelyon17/fedavg.py", CAMELYON, _HOSPITALS, "", CAMELYON_DATA),
    },
    printed={
        "accuracy": {
            "FedAvg": (91.10, 83.12, 82.06, 87.49, 74.78, 83.71),
            "FedProx": (91.03, 82.88, 82.78, 87.07, 74.93, 83.74),
            "FedNova": (90.99, 82.97, 82.40, 86.93, 74.86, 83.61),
            "FedAdam": (87.45, 80.38, 76.89, 89.27, 77.86, 82.37),
            "FedBN": (89.35, 90.25, 94.16, 94.04, 68.87, 87.33),
            "MOON": (88.92, 83.52, 84.71, 90.02, 67.79, 82.99),
            "HarmoFL": (96.17, 93.60, 95.54, 95.58, 96.50, 95.48),
        }
    },
    deviations={
        "accuracy": {
            "FedAvg": (0.46, 1.58, 8.52, 2.49, 3.19, 6.16),
            "FedProx": (0.50, 1.63, 8.56, 1.76, 3.05, 5.99),
            "FedNova": (0.54, 1.76, 9.21, 1.58, 3.12, 6.00),
            "FedAdam": (0.77, 2.03, 14.03, 1.28, 2.68, 5.65),
            "FedBN": (8.50, 1.66, 1.00, 2.32, 22.14, 10.55),
            "MOON": (1.54, 0.31, 5.14, 1.56, 2.06, 8.93),
            "HarmoFL": (0.56, 0.67, 0.32, 0.27, 0.46, 1.13),
        }
    },
    average=AVERAGE,
    caveats=(
        "FedNova's row has a mean of 83.63, not 83.61.",
        "The deviations beside averages are over hospitals, the others over seeds.",
        LETTERS.format("data set's centers"),
        SPLIT,
        *BASELINES,
        RELEASED_CODE,
    ),
)


def _make_figure_5(
    title: str,
    rows: Mapping[str, Settings],
    columns: Mapping[str, Settings],
    draw: Draw,
    caveats: tuple[str, ...] = (),
    reduced: dict[str, Settings] | None = None,
) -> Experiment:
    """Make the experiment of a panel; reduced: the columns at the scale "cpu", if they differ."""
    return Experiment(
        title=title,
        rows=rows,
        measures={"accuracy": read_mean_client_score(is_selected=True)},
        scales={
            "smoke": make_smoke_scale(dict(list(columns.items())[:1]), DIGITS, CNN_NETWORK),
            "cpu": Scale("chest_xray/fedavg.py", X_RAYS, reduced or columns, CAMELYON_REDUCTION, X_RAY_DATA),
            "paper": Scale("camelyon17/fedavg.py", CAMELYON, columns, "", CAMELYON_DATA),
        },
        draw=draw,
        caveats=("The figure's values are not printed.", *caveats, SPLIT, NETWORKS, RELEASED_CODE),
    )


def _vary_local_epochs(rounds: dict[str, int]) -> dict[str, Settings]:
    """Make the columns {epochs per round: settings} from {epochs per round: rounds}; one epoch is the usual setting."""
    settings = {epochs: {"algorithm.epochs": epochs, "rounds": str(num)} for epochs, num in rounds.items()}
    return {**settings, "1": {}}


_RADII = {radius: {"algorithm.alpha": radius} for radius in ("1", "0.5", "0.05", "0.005", "0.0005")}
FIGURE_5 = {
    "fig5a": _make_figure_5(
        "HarmoFL, Fig. 5a: accuracy on clients' own test examples against rounds",
        MAIN_METHODS,
        {"one epoch": {}},
        plot_rounds("own"),
    ),
    "fig5b": _make_figure_5(
        f"HarmoFL, Fig. 5b: accuracy on clients' own test examples by local epochs, {SELECTED}",
        MAIN_METHODS,
        _vary_local_epochs({"1": 100, "4": 25, "8": 12, "16": 6}),
        plot_columns("local epochs"),
        (
            "Not in the paper: which numbers of local epochs the figure has, here 1, 4, 8 and 16, and how 100 "
            "epochs in all, 12.5 rounds of 8 and 6.25 of 16, are rounded: here to 12 and 6 rounds.",
        ),
        _vary_local_epochs({"1": 32, "4": 8, "8": 4, "16": 2}),
    ),
    "fig5c": _make_figure_5(
        f"HarmoFL, Fig. 5c: accuracy on clients' own test examples by radius of perturbation, {SELECTED}",
        {"HarmoFL": METHODS["HarmoFL"]},
        _RADII,
        plot_columns("alpha"),
    ),
}

_DOMAINS = {"data.domains": "True", "data.partition.name": "by_domain", "data.num_clients": "4"}
_CLIENTS = {"clients": {}}


FIGURE_1 = Experiment(
    title="HarmoFL, Fig. 1: the clients' loss around the server's model, cross-entropy",
    rows=PARTS,
    measures={
        "rise of the loss at .4": read_loss_rise(0.4),
        "distance of a client's lowest loss": read_minimum_distance,
        "accuracy on clients' own test examples, %, after the last round": read_mean_client_score(),
    },
    scales={
        "smoke": make_smoke_scale(_CLIENTS, {**DIGITS, **_DOMAINS, **diagnose_at_end(3, "landscape")}, CNN_NETWORK),
        "cpu": Scale(
            "chest_xray/fedavg.py",
            {**X_RAYS, **diagnose_at_end(32, "landscape"), "num_seeds": "1"},
            _CLIENTS,
            CAMELYON_REDUCTION,
            X_RAY_DATA,
        ),
        "paper": Scale(
            "camelyon17/fedavg.py", {**CAMELYON, **diagnose_at_end(100, "landscape")}, _CLIENTS, "", CAMELYON_DATA
        ),
    },
    draw=plot_landscapes,
    caveats=("The figure shows two clients; which data they have, and how its plane was chosen, is not said.",),
)

EXPERIMENTS = {
    "table1-nuclei": NUCLEI_TABLE,
    "table1-prostate": PROSTATE_TABLE,
    "table2": TABLE_2,
    "fig1": FIGURE_1,
    **FIGURE_4,
    **FIGURE_5,
}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], "harmofl", EXPERIMENTS))

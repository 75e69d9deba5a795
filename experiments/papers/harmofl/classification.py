"""Table 2 and Fig. 5: accuracy on Camelyon17."""

from ..figures import Draw, curves, sweep
from ..measures import on_own, own
from ..spec import Experiment, Scale, Settings, smoke
from .methods import (
    A_CNN,
    AVERAGE,
    BASELINES,
    CAMELYON,
    CAMELYON_DATA,
    DIGITS,
    FOR_CAMELYON,
    LETTERS,
    METHODS,
    NETWORKS,
    RELEASED,
    SELECTED,
    THREE,
    X_RAY_DATA,
    X_RAYS,
)

SPLIT = (
    "The authors' lists of training and test patches are not those of WILDS' table, which are read here; a fifth of a "
    "hospital's training patches is for validation, as in their code, but of both classes alike."
)
_HOSPITALS = {letter: {} for letter in "ABCDE"}
TABLE_2 = Experiment(
    title=f"HarmoFL, Table 2: Camelyon17, accuracy of each hospital's own test patches, %, {SELECTED}",
    rows=METHODS,
    measures={"accuracy": own("accuracy", is_selected=True)},
    scales={
        "smoke": smoke({"client_000": {}}, DIGITS, A_CNN),
        "cpu": Scale(
            "chest_xray/fedavg.py",
            X_RAYS,
            {"ieee8023": {}, "figure1": {}, "actualmed": {}, "kermany": {}},
            FOR_CAMELYON,
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
    doubts=(
        "FedNova's row has a mean of 83.63, not 83.61.",
        "The deviations beside averages are over hospitals, the others over seeds.",
        LETTERS.format("data set's centers"),
        SPLIT,
        *BASELINES,
        RELEASED,
    ),
)


def _figure_5(
    title: str,
    rows: dict[str, Settings],
    columns: dict[str, Settings],
    draw: Draw,
    doubts: tuple[str, ...] = (),
    reduced: dict[str, Settings] | None = None,
) -> Experiment:
    """reduced: the columns where a run is shorter, if they are others."""
    return Experiment(
        title=title,
        rows=rows,
        measures={"accuracy": on_own(is_selected=True)},
        scales={
            "smoke": smoke(dict(list(columns.items())[:1]), DIGITS, A_CNN),
            "cpu": Scale("chest_xray/fedavg.py", X_RAYS, reduced or columns, FOR_CAMELYON, X_RAY_DATA),
            "paper": Scale("camelyon17/fedavg.py", CAMELYON, columns, "", CAMELYON_DATA),
        },
        draw=draw,
        doubts=("The figure's values are not printed.", *doubts, SPLIT, NETWORKS, RELEASED),
    )


def _by_local_epochs(rounds: dict[str, int]) -> dict[str, Settings]:
    """As many epochs in all for each number of epochs in a round; with one it is the setting of all else."""
    settings = {epochs: {"algorithm.epochs": epochs, "rounds": str(num)} for epochs, num in rounds.items()}
    return {**settings, "1": {}}


_RADII = {radius: {"algorithm.alpha": radius} for radius in ("1", "0.5", "0.05", "0.005", "0.0005")}
FIGURE_5 = {
    "fig5a": _figure_5(
        "HarmoFL, Fig. 5a: accuracy on clients' own test examples against rounds",
        THREE,
        {"one epoch": {}},
        curves("own"),
    ),
    "fig5b": _figure_5(
        f"HarmoFL, Fig. 5b: accuracy on clients' own test examples by local epochs, {SELECTED}",
        THREE,
        _by_local_epochs({"1": 100, "4": 25, "8": 12, "16": 6}),
        sweep("local epochs"),
        (
            "Not told by the paper: which numbers of local epochs the figure has, here 1, 4, 8 and 16, and how 100 "
            "epochs in all, 12.5 rounds of 8 and 6.25 of 16, are rounded: here to 12 and 6 rounds.",
        ),
        _by_local_epochs({"1": 32, "4": 8, "8": 4, "16": 2}),
    ),
    "fig5c": _figure_5(
        f"HarmoFL, Fig. 5c: accuracy on clients' own test examples by radius of perturbation, {SELECTED}",
        {"HarmoFL": METHODS["HarmoFL"]},
        _RADII,
        sweep("alpha"),
    ),
}

"""Table 2 and Fig. 5: accuracy on Camelyon17."""

from experiments.papers.figures import Draw, curves, sweep
from experiments.papers.harmofl.methods import (
    A_CNN,
    AVERAGE,
    CAMELYON,
    CAMELYON_DATA,
    DIGITS,
    FOR_CAMELYON,
    METHODS,
    THREE,
    X_RAY_DATA,
    X_RAYS,
)
from experiments.papers.measures import on_own, own
from experiments.papers.plan import Experiment, Scale, Settings, smoke

_HOSPITALS = {letter: {} for letter in "ABCDE"}
TABLE_2 = Experiment(
    title="HarmoFL, Table 2: Camelyon17, accuracy of each hospital's own test patches, %",
    rows=METHODS,
    measures={"accuracy": own("accuracy")},
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
    average=AVERAGE,
    doubts=("FedNova's row has a mean of 83.63, not 83.61.",),
)


def _figure_5(title: str, rows: dict[str, Settings], columns: dict[str, Settings], draw: Draw) -> Experiment:
    return Experiment(
        title=title,
        rows=rows,
        measures={"accuracy": on_own()},
        scales={
            "smoke": smoke(dict(list(columns.items())[:1]), DIGITS, A_CNN),
            "cpu": Scale("chest_xray/fedavg.py", X_RAYS, columns, FOR_CAMELYON, X_RAY_DATA),
            "paper": Scale("camelyon17/fedavg.py", CAMELYON, columns, "", CAMELYON_DATA),
        },
        draw=draw,
        doubts=("The figure's values are not printed.",),
    )


_RADII = {radius: {"algorithm.alpha": radius} for radius in ("1", "0.5", "0.05", "0.005", "0.0005")}
FIGURE_5 = {
    "fig5a": _figure_5(
        "HarmoFL, Fig. 5a: accuracy on clients' own test examples against rounds",
        THREE,
        {"one epoch": {}},
        curves("own"),
    ),
    "fig5b": _figure_5(
        "HarmoFL, Fig. 5b: accuracy on clients' own test examples by local epochs",
        THREE,
        {epochs: {"algorithm.epochs": epochs} for epochs in ("1", "4", "8", "16")},
        sweep("local epochs"),
    ),
    "fig5c": _figure_5(
        "HarmoFL, Fig. 5c: accuracy on clients' own test examples by radius of perturbation",
        {"HarmoFL": METHODS["HarmoFL"]},
        _RADII,
        sweep("alpha"),
    ),
}

"""HarmoFL's experiments: Jiang et al., HarmoFL: Harmonizing Local and Global Drifts, AAAI 2022.

python -m experiments.papers.harmofl --what=table1-nuclei --scale=cpu --data=nuclei.npz --workdir=runs/harmofl
"""

import sys

from experiments.papers.command import main
from experiments.papers.figures import Draw, curves, sweep
from experiments.papers.measures import final, own
from experiments.papers.plan import Experiment, Scale, Settings, smoke

METHODS = {
    "FedAvg": {"algorithm.name": "fedavg"},
    "FedProx": {"algorithm.name": "fedprox"},
    "FedNova": {"algorithm.name": "fednova"},
    "FedAdam": {"algorithm.name": "fedadam"},
    "FedBN": {"algorithm.name": "fedbn"},
    "MOON": {"algorithm.name": "moon"},
    "HarmoFL": {"algorithm.name": "harmofl"},
}
_THREE = {name: METHODS[name] for name in ("FedAvg", "FedBN", "HarmoFL")}
_SITES = {letter: {} for letter in "ABCDEF"}
_HOSPITALS = {letter: {} for letter in "ABCDE"}
_AVERAGE = "Avg."
_X_RAYS = {
    "data.name": "arrays",
    "data.path": "{cxr}",
    "data.size": "48",
    "rounds": "30",
    "num_seeds": "3",
    "evaluate_every": "4",
}
_FOR_CAMELYON = (
    "chest X-rays of four sources (48 x 48, 1,367 images, three classes) for patches of five hospitals, a small "
    "convolutional network for a DenseNet-121, 30 rounds for 100"
)
_X_RAY_DATA = {"cxr": "the X-rays' .npz file"}
_CAMELYON = {"data.path": "{camelyon}", "num_seeds": "3"}
_CAMELYON_DATA = {"camelyon": "the folder of Camelyon17"}


_PICTURES = {
    "data.num_clients": "3",
    "model.name": "cnn",
    "model.channels": "(4,)",
    "model.hidden": "(8,)",
    "model.norm": "batch",
}
_SMALL = "a small convolutional network"
NUCLEI = Experiment(
    title="HarmoFL, Table 1: nuclei, Dice of each site's own test images, %",
    rows=METHODS,
    measures={"Dice": own("dice")},
    scales={
        "cpu": Scale(
            "nuclei/fedavg.py",
            {
                "data.name": "arrays",
                "data.path": "{nuclei}",
                "data.num_clients": "3",
                "data.size": "128",
                "data.test_fraction": "0.0",
                "model.width": "0.25",
                "algorithm.learning_rate": "0.02",
                "algorithm.batch_size": "8",
                "rounds": "40",
                "evaluate_every": "10",
            },
            {"monuseg2018": {}, "gbm40": {}, "monusac2020": {}},
            "three sites for six (116 tiles of 128 x 128 for 256 x 256), a quarter of the U-Net's channels, 40 rounds "
            "for 500 at a rate of .02 for .0001, batches of 8, one seed for three",
            {"nuclei": "the nuclei's .npz file"},
        ),
        "paper": Scale(
            "nuclei/fedavg.py",
            {"data.path": "{nuclei}", "num_seeds": "3"},
            _SITES,
            "",
            {"nuclei": "the folder with a folder for each site"},
        ),
    },
    printed={
        "Dice": {
            "FedAvg": (73.44, 73.06, 72.52, 68.91, 67.33, 49.69, 67.49),
            "FedProx": (73.49, 73.11, 72.45, 69.01, 67.33, 49.56, 67.49),
            "FedNova": (73.40, 73.01, 71.50, 69.23, 67.46, 50.68, 67.55),
            "FedAdam": (73.53, 72.91, 71.74, 69.26, 66.69, 49.72, 67.31),
            "FedBN": (72.50, 72.51, 74.25, 64.84, 68.39, 69.11, 70.27),
            "MOON": (72.85, 71.92, 69.23, 69.00, 65.08, 48.26, 66.06),
            "HarmoFL": (74.98, 75.21, 76.63, 76.59, 73.94, 69.20, 74.42),
        }
    },
    average=_AVERAGE,
    doubts=(
        "The code and the loader of the nuclei are not published.",
        "The deviations beside averages are over sites.",
    ),
)
PROSTATE = Experiment(
    title="HarmoFL, Table 1: prostate MRI, Dice of each site's own test slices, %",
    rows=METHODS,
    measures={"Dice": own("dice")},
    scales={
        "paper": Scale(
            "prostate/fedavg.py",
            {"data.path": "{prostate}", "num_seeds": "3"},
            _SITES,
            "",
            {"prostate": "the folder with a folder for each site"},
        )
    },
    printed={
        "Dice": {
            "FedAvg": (90.04, 94.31, 92.60, 92.21, 90.14, 89.36, 91.44),
            "FedProx": (90.65, 94.60, 92.64, 92.19, 89.36, 87.07, 91.08),
            "FedNova": (90.73, 94.26, 92.73, 91.91, 90.01, 89.94, 91.60),
            "FedAdam": (90.02, 94.84, 93.30, 91.70, 90.17, 87.77, 91.30),
            "FedBN": (92.68, 94.83, 93.77, 92.32, 93.20, 89.68, 92.75),
            "MOON": (91.79, 93.63, 93.01, 92.61, 91.22, 91.14, 92.23),
            "HarmoFL": (94.06, 95.26, None, 93.51, 94.05, 93.53, 94.28),
        }
    },
    average=_AVERAGE,
    doubts=(
        "HarmoFL's value of site C cannot be read; the average implies 95.27.",
        "Slices are shuffled before they are split, so that a patient's slices lie on both sides.",
    ),
)
TABLE_2 = Experiment(
    title="HarmoFL, Table 2: Camelyon17, accuracy of each hospital's own test patches, %",
    rows=METHODS,
    measures={"accuracy": own("accuracy")},
    scales={
        "smoke": smoke({"client_0": {}}, _PICTURES, _SMALL),
        "cpu": Scale(
            "chest_xray/fedavg.py",
            _X_RAYS,
            {"ieee8023": {}, "figure1": {}, "actualmed": {}, "kermany": {}},
            _FOR_CAMELYON,
            _X_RAY_DATA,
        ),
        "paper": Scale("camelyon17/fedavg.py", _CAMELYON, _HOSPITALS, "", _CAMELYON_DATA),
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
    average=_AVERAGE,
    doubts=("FedNova's row has a mean of 83.63, not 83.61.",),
)


def _figure_5(title: str, rows: dict[str, Settings], columns: dict[str, Settings], draw: Draw) -> Experiment:
    return Experiment(
        title=title,
        rows=rows,
        measures={"accuracy": final("clients/accuracy_mean")},
        scales={
            "smoke": smoke(dict(list(columns.items())[:1]), _PICTURES, _SMALL),
            "cpu": Scale("chest_xray/fedavg.py", _X_RAYS, columns, _FOR_CAMELYON, _X_RAY_DATA),
            "paper": Scale("camelyon17/fedavg.py", _CAMELYON, columns, "", _CAMELYON_DATA),
        },
        draw=draw,
        doubts=("The figure's values are not printed.",),
    )


_RADII = {radius: {"algorithm.alpha": radius} for radius in ("1", "0.5", "0.05", "0.005", "0.0005")}
EXPERIMENTS = {
    "table1-nuclei": NUCLEI,
    "table1-prostate": PROSTATE,
    "table2": TABLE_2,
    "fig5a": _figure_5(
        "HarmoFL, Fig. 5a: accuracy on clients' own test examples against rounds",
        _THREE,
        {"one epoch": {}},
        curves("clients/accuracy_mean"),
    ),
    "fig5b": _figure_5(
        "HarmoFL, Fig. 5b: accuracy on clients' own test examples by local epochs",
        _THREE,
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

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], "harmofl", EXPERIMENTS))

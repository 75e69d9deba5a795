"""HarmoFL's experiments: Jiang et al., HarmoFL: Harmonizing Local and Global Drifts, AAAI 2022.

python -m experiments.papers harmofl --what=table1-nuclei --scale=cpu --data=nuclei.npz --workdir=runs/harmofl
"""

from collections.abc import Mapping, Sequence

from fedjax_het.cli.runs.records import flatten

from ..figures import Draw, plot_columns, plot_landscapes, plot_rounds
from ..measures import read_client_score, read_loss_rise, read_mean_client_score, read_minimum_distance
from ..spec import Experiment, Scale, Settings, make_smoke_scale, read_printed
from .harmofl_segmentation import (
    AVERAGE,
    BASELINES,
    FIGURE_4,
    LETTERS,
    MAIN_METHODS,
    METHODS,
    NETWORKS,
    NUCLEI_TABLE,
    PARTS,
    PROSTATE_TABLE,
    RELEASED_CODE,
    SELECTED,
    diagnose_at_end,
)

_X_RAYS = flatten(
    {
        "data": {"name": "arrays", "path": "{cxr}", "size": "48", "valid_fraction": "0.16", "test_fraction": "0.0"},
        "data.client_test_fraction": "0.2",
        "data.standardise": "False",  # amplitude normalisation is of pixels in 0..1
        # All methods have this momentum, as in the paper; it is HarmoFL's default only.
        "algorithm": {"learning_rate": "0.005", "momentum": "0.9", "weight_decay": "1e-4"},
        "rounds": "32",
        "num_seeds": "3",
        "evaluate_every": "2",
    }
)
_REDUCTION = (
    "chest X-rays of four sources (48 x 48, 1,367 images, three classes) for patches of five hospitals, a small "
    "convolutional network for a DenseNet-121, 32 rounds for 100 at a rate of .005 for .001, every second one validated"
)
_CAMELYON = {"data.path": "{camelyon}", "num_seeds": "3", "evaluate_every": "1"}
_DIGITS = flatten(
    {
        "data": {"num_clients": "3", "valid_fraction": "0.16", "client_test_fraction": "0.2"},
        "model": {"name": "cnn", "channels": "(4,)", "hidden": "(8,)", "norm": "batch"},
    }
)


def _make_scales(
    smoke: Mapping[str, Settings],
    cpu: Mapping[str, Settings],
    paper: Mapping[str, Settings],
    added: Sequence[Settings] = ({}, {}, {}),
) -> dict[str, Scale]:
    """Make the scales of classification with these columns; added: further settings of the runs of each."""
    return {
        "smoke": make_smoke_scale(smoke, {**_DIGITS, **added[0]}, "a small convolutional network"),
        "cpu": Scale("chest_xray", {**_X_RAYS, **added[1]}, cpu, _REDUCTION, {"cxr": "the X-rays' .npz file"}),
        "paper": Scale("camelyon17", {**_CAMELYON, **added[2]}, paper, "", {"camelyon": "the folder of Camelyon17"}),
    }


SPLIT = (
    "The authors' lists of training and test patches are not those of WILDS' table, which are read here; a fifth of a "
    "hospital's training patches is for validation, as in their code, but of both classes alike."
)
_HOSPITALS = {letter: {} for letter in "ABCDE"}
TABLE_2 = Experiment(
    title=f"HarmoFL, Table 2: Camelyon17, accuracy of each hospital's own test patches, %, {SELECTED}",
    rows=METHODS,
    measures={"accuracy": read_client_score("accuracy", is_selected=True)},
    scales=_make_scales(
        {"client_000": {}}, {"ieee8023": {}, "figure1": {}, "actualmed": {}, "kermany": {}}, _HOSPITALS
    ),
    **read_printed(
        "accuracy",
        """
        FedAvg   91.10 ± 0.46  83.12 ± 1.58  82.06 ± 8.52   87.49 ± 2.49  74.78 ± 3.19   83.71 ± 6.16
        FedProx  91.03 ± 0.50  82.88 ± 1.63  82.78 ± 8.56   87.07 ± 1.76  74.93 ± 3.05   83.74 ± 5.99
        FedNova  90.99 ± 0.54  82.97 ± 1.76  82.40 ± 9.21   86.93 ± 1.58  74.86 ± 3.12   83.61 ± 6.00
        FedAdam  87.45 ± 0.77  80.38 ± 2.03  76.89 ± 14.03  89.27 ± 1.28  77.86 ± 2.68   82.37 ± 5.65
        FedBN    89.35 ± 8.50  90.25 ± 1.66  94.16 ± 1.00   94.04 ± 2.32  68.87 ± 22.14  87.33 ± 10.55
        MOON     88.92 ± 1.54  83.52 ± 0.31  84.71 ± 5.14   90.02 ± 1.56  67.79 ± 2.06   82.99 ± 8.93
        HarmoFL  96.17 ± 0.56  93.60 ± 0.67  95.54 ± 0.32   95.58 ± 0.27  96.50 ± 0.46   95.48 ± 1.13
        """,
    ),
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
        scales=_make_scales(dict(list(columns.items())[:1]), reduced or columns, columns),
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
    scales=_make_scales(
        _CLIENTS,
        _CLIENTS,
        _CLIENTS,
        (
            {**_DOMAINS, **diagnose_at_end(3, "landscape")},
            {**diagnose_at_end(32, "landscape"), "num_seeds": "1"},
            diagnose_at_end(100, "landscape"),
        ),
    ),
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

"""Draw docs/images/tasks.svg: regression, tags, ranks and forecasts on real data, and write its numbers as .csv."""

import csv
from dataclasses import replace
from pathlib import Path

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np

import fedjax_het as fh
from docs.overview import FONT, INKS, SPINES

ROUNDS, SEEDS = 60, 5
TRAINING = {"batch_size": 16, "epochs": 2}
OPTIONS = {"rounds": ROUNDS, "evaluate_every": 3, "num_seeds": SEEDS}
COLORS = ("#3b82f6", "#f97316", "#22a559")
Curves = dict[str, tuple[list, np.ndarray]]  # {label: (x, values [seeds, x])}


def follow(figure, algorithm, model, federation, **options) -> tuple[list, np.ndarray]:
    history = fh.simulate(algorithm, model, federation, **OPTIONS, **options)
    return history.rounds, history.figures()[figure]


def regress() -> Curves:
    """RMSE of the progression of diabetes; clients have random patients, or ranges of the progression."""
    curves, dataset = {}, fh.data.load("diabetes")
    partitions = {"random patients": fh.data.iid(), "ranges": fh.data.by_quantile()}
    for label, partition in partitions.items():
        federation = fh.data.federate(
            dataset, partition, 5, standardise=True, standardise_targets="common"
        )
        model = fh.models.mlp(federation.num_classes, hidden=(16,))
        algorithm = fh.algorithms.fedavg(learning_rate=0.01, **TRAINING)
        curves[label] = follow("test/rmse", algorithm, model, federation)
    positions = np.asarray(federation.test.index)
    spread = dataset.labels[positions].std()
    curves["mean progression"] = ([0, ROUNDS], np.full((1, 2), spread))
    return curves


def tag() -> Curves:
    """Macro F1 of four properties of digits, one of four synthetic domains per client, of which one is turned."""
    dataset = fh.data.load("digits", domains=True, tags=True)
    federation = fh.data.federate(dataset, fh.data.by_domain(), 8)
    model, curves = fh.models.mlp(federation.num_classes, hidden=(64,)), {}
    for label in ("bce", "weighted_bce"):
        algorithm = fh.algorithms.fedavg(learning_rate=0.1, **TRAINING)
        objective = fh.objectives.with_task_loss(algorithm.objective, label)
        algorithm = replace(algorithm, objective=objective)
        curves[label] = follow("test/macro_f1", algorithm, model, federation)
    return curves


def rank() -> Curves:
    """Quadratic kappa of five grades of progression, as ranks and as classes."""
    ranked, curves = fh.data.load("diabetes", grades=5), {}
    classed = replace(ranked, labels=ranked.labels.astype(np.int32))
    for label, dataset in {"ranks": ranked, "classes": classed}.items():
        federation = fh.data.federate(
            dataset, fh.data.dirichlet(0.5), 5, standardise=True
        )
        model = fh.models.mlp(federation.num_classes, hidden=(16,))
        if label == "ranks":
            model = fh.models.ordinal(model)
        algorithm = fh.algorithms.fedavg(learning_rate=0.02, **TRAINING)
        simulation = fh.Simulation(algorithm, model, federation, **OPTIONS)
        rounds, kappas, state = [], [], simulation.start()
        while len(rounds) < ROUNDS // OPTIONS["evaluate_every"]:
            state, _ = simulation.advance(state, OPTIONS["evaluate_every"])
            rounds.append(OPTIONS["evaluate_every"] * (len(rounds) + 1))
            kappas.append(
                [
                    measure_kappa(algorithm, model, federation, state, run)
                    for run in range(SEEDS)
                ]
            )
        curves[label] = rounds, np.array(kappas).T
    return curves


def measure_kappa(algorithm, model, federation, state, run: int) -> float:
    from sklearn.metrics import cohen_kappa_score

    found = fh.predict(algorithm, model, federation, state, run=run)
    return cohen_kappa_score(found.labels, found.classes, weights="quadratic")


def forecast() -> Curves:
    """Squared error by step of four EEG channels, Matplotlib's sample data, one per client; a linear model."""
    file = Path(mpl.get_data_path()) / "sample_data" / "eeg.dat"
    channels = np.fromfile(file).reshape(800, 4)
    series = {f"channel_{i}": channel for i, channel in enumerate(channels.T)}
    dataset, steps = fh.data.windows(series, 24, 8), list(range(1, 9))
    federation = fh.data.federate(dataset, fh.data.by_domain(), 0, local_test=True)
    model = fh.models.mlp(federation.num_classes, hidden=())
    algorithm, metrics = (
        fh.algorithms.fedavg(learning_rate=0.02, **TRAINING),
        ("mse_by_output",),
    )
    figures = fh.simulate(
        algorithm, model, federation, **OPTIONS, metrics=metrics
    ).figures()
    names = [f"clients/mse[step_{step}]_pooled" for step in steps]
    curves = {
        "FedAvg": (steps, np.stack([figures[name][:, -1] for name in names], axis=1))
    }
    test = np.flatnonzero(dataset.is_test)
    true = dataset.units.restore(dataset.labels[test], test)
    last = dataset.units.restore(dataset.inputs[test, -1:, 0], test)
    mean = dataset.units.mean[dataset.units.group[test]]
    for label, forecasts in {
        "last value": last,
        "mean of the training part": mean,
    }.items():
        curves[label] = steps, np.square(forecasts - true).mean(axis=0)[None]
    return curves


PANELS = {
    "Regression": (regress, "round", "RMSE on the test set"),
    "Tags": (tag, "round", "macro F1 on the test set"),
    "Ranks": (rank, "round", "quadratic kappa on the test set"),
    "Forecast": (forecast, "step", "MSE of all clients' windows"),
}


def main() -> None:
    plt.rcParams |= FONT | INKS | SPINES | {"svg.hashsalt": "tasks"}
    figure, axes = plt.subplots(2, 2, figsize=(9.6, 6.6), layout="constrained")
    rows = []
    for axis, (title, (run, x_label, y_label)) in zip(
        axes.flat, PANELS.items(), strict=True
    ):
        for color, (label, (x, values)) in zip(COLORS, run().items(), strict=False):
            style = "--" if len(values) == 1 else "-"
            axis.plot(
                x, values.mean(axis=0), style, color=color, linewidth=2, label=label
            )
            band = values.min(axis=0), values.max(axis=0)
            axis.fill_between(x, *band, color=color, alpha=0.15, linewidth=0)
            for place, mean, low, high in zip(
                x, values.mean(axis=0), *band, strict=True
            ):
                rows.append(
                    (title, label, place, f"{mean:.4g}", f"{low:.4g}", f"{high:.4g}")
                )
        axis.set(title=title, xlabel=x_label, ylabel=y_label)
        axis.legend(frameon=False)
    images = Path(__file__).parent / "images"
    figure.savefig(images / "tasks.svg", transparent=True, metadata={"Date": None})
    with (images / "tasks.csv").open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("panel", "curve", "x", "mean", "lowest", "highest"))
        writer.writerows(rows)


if __name__ == "__main__":
    main()

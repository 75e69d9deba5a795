"""Recovery from a sudden drift of all clients on Fashion-MNIST, by server optimizers and learning rates:

    python -m experiments.drift_recovery --data=fashion_mnist.npz

chooses the learning rates of each method by the accuracy of one seed over all rounds, trains other seeds, and writes a
CSV file and a picture. Accuracies in the working folder are read instead of trained. Exit status: 0 = all runs are
done, 2 = an error of input.
"""

import itertools
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from matplotlib.figure import Figure as Drawing

import fedjax_het as fh
from experiments.figures import make_curves
from experiments.run import parse_paths
from experiments.tradeoffs import DATA
from fedjax_het.algorithms import ada_fedavg, fedadam, fedavgm, flash
from fedjax_het.cli.configuration.command_line import make_parser, with_exit_status
from fedjax_het.cli.runs import json_files, plots
from fedjax_het.cli.runs.figures import Panel, View
from fedjax_het.data import concept, drift

ROUNDS, START, NUM_SEEDS, TUNING_SEED = 80, 40, 5, 100
LEVEL = 70
"""The accuracy in per cent that all methods have before the drift."""
DRIFTS: Mapping[str, drift.Drift] = {
    "rotated images": drift.sudden(START, concepts=concept.rotated()),
    "permuted classes": drift.sudden(START, concepts=concept.relabeled()),
}
TRAINING = {"batch_size": 50, "epochs": 3, "weighting": "uniform"}
LOCAL_RATES, ADAPTIVE_RATES = (0.03, 0.1, 0.3), (0.003, 0.01, 0.03)


class Method(NamedTuple):
    """An algorithm, and the server learning rates among which one is chosen; none without a server optimizer."""

    build: Callable[..., fh.Algorithm]
    server_rates: Sequence[float] = ()

    @property
    def grid(self) -> dict[str, list[float]]:
        """The values of a sweep over all pairs of rates."""
        axes = {"learning_rate": LOCAL_RATES, "server_learning_rate": self.server_rates}
        axes = {name: rates for name, rates in axes.items() if rates}
        return dict(zip(axes, map(list, zip(*itertools.product(*axes.values()), strict=True)), strict=True))


METHODS: Mapping[str, Method] = {
    "FedAvg": Method(partial(fedavgm, server_momentum=0.0), (0.5, 1.0, 2.0)),
    "FedAdam": Method(fedadam, ADAPTIVE_RATES),
    "FLASH": Method(flash, ADAPTIVE_RATES),
    "Adaptive-FedAvg": Method(ada_fedavg),
}


class Result(NamedTuple):
    """The chosen learning rates, and the accuracy in per cent on the data of the next round, [seeds, rounds]."""

    rates: Mapping[str, float]
    accuracy: np.ndarray

    @property
    def summary(self) -> dict[str, np.ndarray]:
        """Numbers of each seed; -1 where an accuracy is not reached again."""
        first = START - 1  # after START rounds, the next ones have other data
        after = self.accuracy[:, first:]
        has_level = after >= LEVEL
        return {
            "before, %": self.accuracy[:, first - 10 : first].mean(axis=1),
            "after, %": after.mean(axis=1),
            f"rounds to {LEVEL} %": np.where(has_level.any(axis=1), has_level.argmax(axis=1), -1),
            "rounds to 95 % of the best": fh.engine.drift_statistics(self.accuracy.T, first)["recovery"],
        }


Results = Mapping[tuple[str, str], Result]
"""{(drift, method): its result}."""


def simulate(algorithm: fh.Algorithm | fh.Sweep, rule: drift.Drift, path: str, **seeds: Any) -> np.ndarray:
    """Train 300 clients, ten per round, and return the accuracy on the data of the next round: [runs, rounds]."""
    dataset, partition = fh.data.load("arrays", path=path), fh.data.dirichlet(alpha=0.5, equal_sizes=True)
    tests: dict[str, Any] = {"test_fraction": 0, "local_test": True, "valid_fraction": 0.1}
    federation = fh.data.federate(dataset, partition, num_clients=300, drift=rule, **tests)
    model = fh.models.mlp(federation.num_classes, hidden=(64,))
    options: dict[str, Any] = {"rounds": ROUNDS, "cohort_size": 10, "evaluate_every": 1, **seeds}
    return 100 * fh.simulate(algorithm, model, federation, **options).figures()["phases/accuracy_next"]


def train(method: Method, rule: drift.Drift, path: str, file: Path) -> Result:
    """Choose the learning rates and train with them, unless the file has the result."""
    grid, build = method.grid, partial(method.build, **TRAINING)
    if not file.exists():
        scores = simulate(fh.Sweep(build, grid), rule, path, seed=TUNING_SEED).mean(axis=1)
        best: dict[str, Any] = {name: values[int(np.nanargmax(scores))] for name, values in grid.items()}
        accuracy = simulate(build(**best), rule, path, num_seeds=NUM_SEEDS)
        np.savez(file, accuracy=accuracy, scores=scores, **best)
    with np.load(file) as stored:
        return Result({name: float(stored[name]) for name in grid}, stored["accuracy"])


def _join(values: np.ndarray) -> str:
    return ";".join(f"{round(float(value), 1):g}" for value in values)


def write_csv(results: Results, path: Path) -> None:
    """Write a line for each drift and method, with the numbers of each seed."""
    rates = ("learning_rate", "server_learning_rate")
    names = list(next(iter(results.values())).summary)
    lines = [
        (*place, *map(result.rates.get, rates), *(_join(values) for values in result.summary.values()))
        for place, result in results.items()
    ]
    header = ("drift", "method", *(rate.replace("_", " ") for rate in rates), *names)
    json_files.write(path, json_files.to_csv(header, lines))


def draw(results: Results) -> Drawing:
    """Draw the accuracy over the rounds, with a band from seed to seed."""
    panels = []
    for name in dict.fromkeys(drifted for drifted, _ in results):
        found = {method: result.accuracy for (drifted, method), result in results.items() if drifted == name}
        points = ((method, i + 1, values) for method in found for i, values in enumerate(found[method].T))
        axes = f"{name} after {START} rounds", "round", "accuracy on the next round, %"
        panels.append(Panel(*axes, make_curves(points, list(METHODS)), (0, 90), x_lines=(START,)))
    return plots.draw_view(View("", panels))


@with_exit_status("stopped; the same command resumes")
def main(argv: Sequence[str]) -> int:
    """Run the command; return the exit status."""
    parser = make_parser("python -m experiments.drift_recovery", "Show the recovery from a drift: train and draw.")
    parser.add_argument("--data", required=True, help=DATA["fashion_mnist"])
    parser.add_argument("--workdir", type=Path, default=Path("runs/drift"), help="of the accuracies")
    parser.add_argument("--out", type=Path, default=Path("docs/images"), help="of the CSV file and the picture")
    flags = parser.parse_args(argv)
    path = parse_paths(DATA, [flags.data])["fashion_mnist"]
    for folder, flag in ((flags.workdir, "--workdir"), (flags.out, "--out")):
        json_files.check_writable(folder, flag)
        folder.mkdir(parents=True, exist_ok=True)
    results = {}
    for (name, rule), (title, method) in itertools.product(DRIFTS.items(), METHODS.items()):
        file = flags.workdir / f"{name} {title}.npz".replace(" ", "_")
        results[name, title] = train(method, rule, path, file)
    write_csv(results, flags.out / "drift_recovery.csv")
    plots.write_drawing(flags.out / "drift_recovery.svg", draw, results)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

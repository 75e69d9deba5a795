"""Scaling laws of client counts, accuracy and cost over clients per round and over the number of clients:

    python -m experiments.scaling_laws --data fashion_mnist.npz cifar10.npz

trains the runs that are missing, and writes for each data set a CSV of the points, one of the laws, and a picture. The
same command resumes. Exit status: 0 = all runs are done; 1 = some failed; 2 = an input error.
"""

import itertools
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure as Drawing
from matplotlib.ticker import LogLocator, NullLocator

from experiments.client_counts import DATA_SETS, EXAMPLES_PER_CLIENT, SCALES, Plan, Row, read_rows
from experiments.figures import make_curves, set_x_ticks
from experiments.run import Runner
from experiments.tradeoffs import ALGORITHMS
from fedjax_het.cli.configuration.command_line import make_parser, split_overrides, with_exit_status
from fedjax_het.cli.runs import json_files, plots
from fedjax_het.cli.runs.figures import Panel, View
from fedjax_het.cli.runs.setting_text import select_names
from fedjax_het.errors import InputError


# ---- laws ------------------------------------------------------------------------------------------------------------
class Fit(NamedTuple):
    """y = a + b x, and the largest relative deviation of a point from it."""

    a: float
    b: float
    deviation: float


def fit_line(x: Sequence[float], y: Sequence[float]) -> Fit:
    """Fit a line to positive y by least squares of relative deviations."""
    design = np.stack([np.ones(len(x)), np.array(x, float)], axis=1) / np.array(y, float)[:, None]
    (a, b), *_ = np.linalg.lstsq(design, np.ones(len(y)))
    return Fit(float(a), float(b), float(np.max(np.abs(design @ [a, b] - 1))))


class Dependence(NamedTuple):
    """A quantity over client counts, and the laws that are fitted to it.

    Attributes:
        label: the label with its unit.
        read: row -> its values, one or several; none where it was not measured.
        laws: {"cohort" or "population": (the law, the function of it in which the law is linear)}.
        axes: the axes over which it is drawn.
        y_scale: "log" or "linear".
    """

    label: str
    read: Callable[[Row], Sequence[float]]
    laws: Mapping[str, tuple[str, Callable[[float], float]]]
    axes: tuple[str, ...] = ("cohort", "population")
    y_scale: str = "linear"

    def select_rows(self, plan: Plan, rows: Sequence[Row], axis: str, algorithm: str) -> list[Row]:
        """Select the rows of an algorithm over clients per round, "cohort", or the number of clients, "population"."""
        other, part = ("population", "cohorts") if axis == "cohort" else ("cohort", "populations")
        return [
            row
            for row in rows
            if row.algorithm == algorithm
            and getattr(row, other) == getattr(plan, other)
            and getattr(row, axis) in getattr(plan, part)
            and self.read(row)
        ]


def list_dependences(plan: Plan, targets: Sequence[float]) -> list[Dependence]:
    """List the quantities that are drawn and fitted. K: clients per round, N: clients."""

    def count_rounds(number: int) -> Dependence:
        law = {"cohort": ("a + b / K", lambda cohort: 1 / cohort)}
        axes = ("cohort",) if number == 0 else ()
        label = f"rounds to {targets[number]:g} %"
        return Dependence(label, lambda row: [x] if (x := row.targets[number]) else [], law, axes, "log")

    logs = {"cohort": ("a + b log10 K", math.log10), "population": ("a + b log10 N", math.log10)}
    linear = {"cohort": ("a + b K", float), "population": ("a + b N", float)}
    return [
        Dependence(f"accuracy after {plan.rounds:,} rounds, %", lambda row: row.by_rounds, logs),
        Dependence(f"accuracy after {plan.visits:,} visits, %", lambda row: row.by_visits, logs),
        count_rounds(0),
        count_rounds(1),
        Dependence("seconds per round", lambda row: row.seconds, linear, y_scale="log"),
        Dependence("peak MB", lambda row: [row.peak_mb] if row.peak_mb else [], linear, ("population",), "log"),
    ]


def fit_laws(plan: Plan, targets: Sequence[float], rows: Sequence[Row]) -> list[list[object]]:
    """Fit each law to the medians at three points or more; return the lines of the table of laws."""
    lines: list[list[object]] = []
    for dependence in list_dependences(plan, targets):
        for (axis, (law, transform)), name in itertools.product(dependence.laws.items(), ALGORITHMS):
            points = dependence.select_rows(plan, rows, axis, name)
            if len(points) < 3:
                continue
            x = [transform(getattr(row, axis)) for row in points]
            a, b, deviation = fit_line(x, [float(np.median(dependence.read(row))) for row in points])
            numbers = [f"{value:.4g}" for value in (a, b, b / a, 100 * deviation)]
            lines.append([dependence.label, law, name, *numbers, len(points)])
    return lines


# ---- files -----------------------------------------------------------------------------------------------------------
def draw(plan: Plan, targets: Sequence[float], rows: Sequence[Row]) -> Drawing:
    """Draw a row of panels over clients per round, and one over the number of clients; bands from lowest to highest."""
    panels, titles = [], {"cohort": f"{plan.population:,} clients", "population": f"{plan.cohort} clients per round"}
    labels = {"cohort": "clients per round", "population": "clients"}
    for axis, dependence in itertools.product(titles, list_dependences(plan, targets)):
        if axis not in dependence.axes:
            continue
        points = [
            (name, getattr(row, axis), dependence.read(row))
            for name in ALGORITHMS
            for row in dependence.select_rows(plan, rows, axis, name)
        ]
        if curves := make_curves(points, list(ALGORITHMS), np.median):
            scales = {"x_scale": "log", "y_scale": dependence.y_scale}
            panels.append(Panel(titles[axis], labels[axis], dependence.label, curves, **scales))
    drawing = plots.draw_view(View("", panels), across=2, size=(3.7, 2.4))  # two side by side: legible in a page
    ticks = {labels["cohort"]: plan.cohorts, labels["population"]: plan.populations}
    for axis in drawing.axes:
        if values := list(ticks.get(axis.get_xlabel(), ())):
            set_x_ticks(axis, {value: f"{value:,}" for value in values})
        if axis.get_yscale() == "log":
            low, high = axis.get_ylim()
            axis.yaxis.set_major_locator(LogLocator(subs=(1, 3) if high > 10 * low else (1, 1.5, 2, 3, 5, 7)))
            axis.yaxis.set_major_formatter("{x:g}")
            axis.yaxis.set_minor_locator(NullLocator())
    return drawing


def write_tables(name: str, plan: Plan, rows: Sequence[Row], out: Path) -> None:
    """Write the points and the laws of a data set."""
    targets = DATA_SETS[name].targets
    header = ["algorithm", "clients", "clients per round"]
    for length in (f"{plan.rounds} rounds", f"{plan.visits} visits"):
        header += [f"accuracy after {length}, %", "seeds"]
    header += [*(f"rounds to {target:g} %" for target in targets), "examples per round", "MB up per round"]
    header += ["seconds per round", "lowest", "highest", "peak MB", "client states", "examples", "accuracy", "cost"]
    lines = []
    for row in rows:
        line: list[object] = [row.algorithm, row.population, row.cohort]
        for seeds in (row.by_rounds, row.by_visits):
            line += [round(float(np.mean(seeds)), 3) if seeds else None, ";".join(map(str, seeds))]
        timed = [f"{end(row.seconds):.4g}" if row.seconds else None for end in (np.median, min, max)]
        up_mb, peak_mb = (None if size is None else f"{size:.5g}" for size in (row.up_mb, row.peak_mb))
        line += [*row.targets, row.cohort * EXAMPLES_PER_CLIENT, up_mb, *timed, peak_mb, *row.where, *row.status]
        lines.append(line)
    json_files.write(out / f"scaling_{name}.csv", json_files.to_csv(header, lines))
    header = ("quantity", "law", "algorithm", "a", "b", "b / a", "largest deviation, %", "points")
    json_files.write(out / f"scaling_{name}_laws.csv", json_files.to_csv(header, fit_laws(plan, targets, rows)))


@with_exit_status("stopped; the same command resumes")
def main(argv: Sequence[str], plan: Plan = Plan()) -> int:
    """Run the command; return the exit status."""
    own, common = split_overrides(argv)
    parser = make_parser(
        "python -m experiments.scaling_laws",
        "Show accuracy and cost over clients per round and over the number of clients: train and draw.",
    )
    names = " and ".join(f"{name}.npz" for name in DATA_SETS)
    parser.add_argument("--data", type=Path, nargs="+", required=True, help=f"files of data, named {names}")
    parser.add_argument("--parts", default="all", help=f"{', '.join(SCALES)}, comma-separated, or all: what is trained")
    parser.add_argument("--workdir", type=Path, default=Path("runs/scaling_laws"), help="the folder of the runs")
    parser.add_argument("--out", type=Path, default=Path("docs/images"), help="the folder of CSV files and pictures")
    flags = parser.parse_args(own)
    parts = select_names("--parts", flags.parts, SCALES)
    for path in flags.data:
        if path.stem not in DATA_SETS or not path.exists():
            raise InputError(f"--data: '{path}' does not exist or has another name. Pass files named {names}.")
    json_files.check_writable(flags.out, "--out")
    runners: dict[str, dict[str, Runner]] = {}
    for path in flags.data:
        given = {**DATA_SETS[path.stem].settings, **common, "data.path": str(path.resolve())}
        runners[path.stem] = {
            part: Runner(plan.make_experiment(part), scale, given, {}, flags.workdir / path.stem)
            for part, scale in SCALES.items()
        }
    flags.out.mkdir(parents=True, exist_ok=True)
    for part, (name, by_part) in itertools.product(parts, runners.items()):
        targets = DATA_SETS[name].targets
        read = partial(read_rows, plan, targets, by_part)
        by_part[part].train(lambda name=name, read=read: write_tables(name, plan, read(), flags.out))
        rows = read()
        if any(row.by_rounds or row.seconds for row in rows):
            plots.write_drawing(flags.out / f"scaling_{name}.svg", draw, plan, targets, rows)
    return int(any(runner.failed for by_part in runners.values() for runner in by_part.values()))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

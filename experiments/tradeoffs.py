"""Trade-offs of accuracy with privacy, bits, attackers and time, on Fashion-MNIST among 100 clients:

    python -m experiments.tradeoffs --data=fashion_mnist.npz

trains the runs that are missing, and writes a CSV and a picture per topic. The same command resumes. Exit status: 0 =
all runs are done, or refused for what they ask; 1 = some failed; 2 = an error of input.
"""

import itertools
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from matplotlib.figure import Figure as Drawing

from fedjax_het.cli.configuration.command_line import make_parser, split_overrides, with_exit_status
from fedjax_het.cli.configuration.config_files import find_config
from fedjax_het.cli.report import costs
from fedjax_het.cli.runs import json_files, plots
from fedjax_het.cli.runs.figures import Panel, View, mean_curve
from fedjax_het.cli.runs.results import RunResults
from fedjax_het.cli.runs.setting_text import select_names
from fedjax_het.cli.sweep import grid
from fedjax_het.cli.sweep.grid import GridResult, GridRun
from fedjax_het.errors import InputError

Settings = Mapping[str, str]
COMMON: Settings = {
    "model.name": "mlp",
    "model.hidden": "(32,)",
    "data.num_clients": "100",
    "data.partition.equal_sizes": "True",
    "rounds": "60",
    "num_seeds": "2",
    "layout": "vmapped",
}
ALGORITHMS: Mapping[str, Settings] = {
    "FedAvg": {"algorithm.name": "fedavg", "algorithm.weighting": "uniform"},
    "SCAFFOLD": {"algorithm.name": "scaffold", "algorithm.learning_rate": "0.02"},
    "FedLD": {"algorithm.name": "fedld", "algorithm.weighting": "uniform", "algorithm.lam": "0.03"},
    "FedMGC": {"algorithm.name": "fedmgc"},
}
"""Learning rates and lam are those of configs/fashion_mnist.py; nothing is tuned for a topic."""
ALPHAS = ("0.1", "0.5")
REFUSED = "exit status 2: error:"
OWN, MEAN = "own aggregation", "plain mean"
_PLAIN_MEAN: Settings = {"aggregator.name": "mean", "aggregator.weighting": "uniform"}


class Point(NamedTuple):
    """One run of a topic, for one algorithm and one partition.

    Attributes:
        curve: the label of the curve that it is on.
        x: where it is; None if the run itself says it.
        settings: besides those of the algorithm.
        only: the algorithms that it is made for; all if empty.
    """

    curve: str
    x: float | None
    settings: Settings
    only: tuple[str, ...] = ()


class Topic(NamedTuple):
    """One picture: a panel per algorithm and partition, a curve per kind of setting.

    Attributes:
        x_label: of the x axis.
        points: of every algorithm.
        settings: of all runs, besides `COMMON`.
        position: (run, round) -> x of an evaluation, for points that have none.
        is_over_time: whether every evaluation is a point, rather than the last one.
        x_scale: "log" or "linear".
        ticks: {x: name} of ticks with names of their own; they set the ends of the axis.
        y_range: of test accuracy in per cent.
    """

    x_label: str
    points: Sequence[Point]
    settings: Settings
    position: Callable[[RunResults, int], float] | None = None
    is_over_time: bool = False
    x_scale: str = "linear"
    ticks: Mapping[float, str] = {}
    y_range: tuple[float, float] = (0, 90)


def _read_line(run: RunResults, round: int, name: str) -> float:
    """The mean over seeds of a figure of one evaluation."""
    values = [line[name] for line in run.lines if line["round"] == round]
    return sum(values) / len(values)


# ---- the topics ------------------------------------------------------------------------------------------------------
_NO_NOISE = 32.0  # where runs without noise are drawn on the axis of epsilon
_POISSON = {"participation.name": "poisson", "participation.probability": "0.1", "participation.slots": "24"}
_NOISE = ("0.69", "1.4", "2.22")  # epsilon 8, 2 and 1 after 60 rounds, nearly; the runs say it exactly


def _stage(name: str, **options: str) -> Settings:
    return {"uplink.0.name": name} | {f"uplink.0.{key}": text for key, text in options.items()}


def _private(noise: str) -> Settings:
    return {**_stage("gaussian_mechanism", norm="0.5", noise_multiplier=noise), "privacy.delta": "0.001"}


PRIVACY = Topic(
    "epsilon",
    [
        Point(OWN, _NO_NOISE, {}),
        *(Point(OWN, None, _private(each), ("FedAvg",)) for each in _NOISE),
        # One amount of noise is enough to see that any is refused.
        Point(OWN, None, _private(_NOISE[0]), ("SCAFFOLD", "FedLD", "FedMGC")),
        Point(MEAN, _NO_NOISE, _PLAIN_MEAN, ("FedLD", "FedMGC")),
        *(Point(MEAN, None, {**_private(each), **_PLAIN_MEAN}, ("FedLD", "FedMGC")) for each in _NOISE),
    ],
    {**_POISSON, "cohort_size": "0", "evaluate_every": "60"},
    lambda run, round: _read_line(run, round, "privacy/epsilon"),
    x_scale="log",
    ticks={1: "1", 2: "2", 8: "8", _NO_NOISE: "none"},
)

COMPRESSION = Topic(
    "Mbit sent by clients",
    [
        Point("no compression", None, {}),
        Point("quantize, 16 levels", None, _stage("quantize", levels="16")),
        *(
            Point("top_k, error feedback", None, _stage("top_k", fraction=each, feedback="classic"))
            for each in ("0.01", "0.1")
        ),
        Point("drive", None, _stage("drive")),
        Point("sign, error feedback", None, _stage("sign", feedback="classic")),
    ],
    {"cohort_size": "10"},
    lambda run, round: costs.count_bits_up(next(line for line in run.lines if line["round"] == round)) / 1e6,
    x_scale="log",
    ticks={each: f"{each:g}" for each in (5, 30, 200, 1000)},
    y_range=(60, 85),
)

_RULE: Settings = {"aggregator.name": "trimmed_mean", "aggregator.num_attackers": "3", "aggregator.before": "nnm"}
_RULES: Mapping[str, Settings] = {OWN: {}, "NNM and trimmed mean, f = 3": _RULE}
_LIES = {0.0: {}} | {x: _stage("attack_sign_flip", factor="5", fraction=f"{x / 100}") for x in (10.0, 30.0)}
ROBUST = Topic(
    "attackers, %",
    [Point(rule, x, {**of_rule, **lie}) for rule, of_rule in _RULES.items() for x, lie in _LIES.items()],
    {"cohort_size": "10"},
)

_SPEEDS = {"timing.name": "log_normal", "timing.message_seconds": "2", "timing.sigma": "0.7"}
_DEADLINE = {**_SPEEDS, "timing.deadline": "14"}
DEVICES = Topic(
    "seconds on the virtual clock",
    [
        Point("wait for the slowest", None, _SPEEDS),
        Point("deadline, partial work", None, {**_DEADLINE, "timing.late": "partial"}),
        Point("deadline, late are dropped", None, {**_DEADLINE, "timing.late": "drop"}),
    ],
    {"cohort_size": "10", "evaluate_every": "5"},
    lambda run, round: _read_line(run, round, "virtual_seconds"),
    is_over_time=True,
    y_range=(30, 85),
)
TOPICS = {"privacy": PRIVACY, "compression": COMPRESSION, "robust": ROBUST, "devices": DEVICES}


# ---- runs ------------------------------------------------------------------------------------------------------------
class Place(NamedTuple):
    """Where a run stands in the picture of a topic."""

    algorithm: str
    alpha: str
    point: Point


def make_runs(topic: Topic, common: Settings) -> list[tuple[Place, GridRun]]:
    """Make the runs of a topic. Points with the same settings, such as those without an attacker, share a run.

    Args:
        topic: the topic.
        common: the settings of all runs, which take precedence.
    """
    runs = []
    for alpha, (algorithm, of_algorithm), point in itertools.product(ALPHAS, ALGORITHMS.items(), topic.points):
        if not point.only or algorithm in point.only:
            own = {**of_algorithm, **topic.settings, **point.settings, "data.partition.alpha": alpha}
            own = {key: text for key, text in own.items() if key not in common}
            run = GridRun(find_config("fashion_mnist"), {**COMMON, **common}, own)
            runs.append((Place(algorithm, alpha, point), run))
    return runs


class Row(NamedTuple):
    """One line of a CSV: an evaluation, or a run that is not done."""

    algorithm: str
    alpha: str
    curve: str
    x: float | None
    mean: float | None
    seeds: list[float]
    status: str


def read_rows(topic: Topic, place: Place, result: GridResult) -> list[Row]:
    """Read the test accuracies of one run, of every evaluation or of the last."""
    label = (place.algorithm, place.alpha, place.point.curve)
    if not result.is_done:
        return [Row(*label, place.point.x, None, [], result.status.replace(REFUSED, "refused:"))]
    run, rows = RunResults(result.directory), []
    rounds = sorted({line["round"] for line in run.lines})
    for number in rounds if topic.is_over_time else rounds[-1:]:
        seeds = [round(100 * line["test/accuracy"], 3) for line in run.lines if line["round"] == number]
        x = topic.position(run, number) if topic.position and place.point.x is None else place.point.x
        rows.append(Row(*label, x, round(sum(seeds) / len(seeds), 3), seeds, "done"))
    return rows


def draw(topic: Topic, rows: Sequence[Row]) -> Drawing:
    """Draw a row of panels per partition, in which each algorithm has one; a band is from seed to seed."""
    names, panels = list(dict.fromkeys(row.curve for row in rows)), []
    for alpha, algorithm in itertools.product(ALPHAS, ALGORITHMS):
        here = [row for row in rows if (row.algorithm, row.alpha) == (algorithm, alpha)]
        curves = []
        for name in dict.fromkeys(row.curve for row in here if row.seeds):
            points = sorted((row.x, row.seeds) for row in here if row.curve == name and row.seeds)
            curves.append(mean_curve(name, names.index(name), *map(list, zip(*points, strict=True))))
        refused = dict.fromkeys(row.curve for row in here if row.status.startswith("refused:"))
        which = "" if refused.keys() == {row.curve for row in here} else f": {', '.join(refused)}"
        x_label = f"{topic.x_label} (refused{which})" if refused else topic.x_label
        title = f"{algorithm}, Dirichlet({alpha})"
        panels.append(Panel(title, x_label, "test accuracy, %", curves, topic.y_range, x_scale=topic.x_scale))
    drawing = plots.draw_view(View("", panels), across=len(ALGORITHMS), size=(2.7, 2.4))
    for axis in drawing.axes if topic.ticks else ():
        axis.set_xticks(list(topic.ticks), list(topic.ticks.values()))
        axis.set_xticks([], minor=True)
        axis.set_xlim(0.8 * min(topic.ticks), 1.25 * max(topic.ticks))
    return drawing


def write_topic(name: str, runs: Sequence[tuple[Place, GridRun]], results: Mapping[str, GridResult], out: Path) -> bool:
    """Write the CSV and the picture; return whether every run is done or was refused."""
    topic, rows = TOPICS[name], []
    for place, run in runs:
        rows += read_rows(topic, place, results[run.name])
    header = ("algorithm", "alpha", "curve", topic.x_label, "test accuracy, %", "seeds", "status")
    lines = []
    for row in rows:
        x = None if row.x is None else topic.ticks.get(row.x, f"{row.x:.6g}")
        lines.append((*row[:3], x, row.mean, ";".join(map(str, row.seeds)), row.status))
    json_files.write(out / f"{name}.csv", json_files.to_csv(header, lines))
    drawing = draw(topic, rows)
    json_files.write(out / f"{name}.svg", lambda file: plots.save(drawing, file, "svg"))
    return all(row.seeds or row.status.startswith("refused:") for row in rows)


@with_exit_status("stopped; the same command resumes")
def main(argv: Sequence[str]) -> int:
    """Run the command; return the exit status."""
    own, common = split_overrides(argv)
    parser = make_parser(
        "python -m experiments.tradeoffs",
        "Show what accuracy costs, or is paid for, in privacy, bits, attackers and time: train and draw.",
    )
    parser.add_argument("--topic", default="all", help=f"{', '.join(TOPICS)}, comma-separated, or all")
    parser.add_argument("--data", type=Path, required=True, help="Fashion-MNIST's .npz file")
    parser.add_argument("--workdir", type=Path, default=Path("runs/tradeoffs"), help="of the runs")
    parser.add_argument("--out", type=Path, default=Path("docs/images"), help="of the CSV files and pictures")
    flags = parser.parse_args(own)
    names = select_names("--topic", flags.topic, TOPICS)
    if not flags.data.exists():
        raise InputError(f"--data: '{flags.data}' does not exist. Give Fashion-MNIST's .npz file.")
    common["data.path"] = str(flags.data.resolve())
    runs = {name: make_runs(TOPICS[name], common) for name in names}
    unique = {name: list({run.name: run for _, run in of_topic}.values()) for name, of_topic in runs.items()}
    json_files.check_writable(flags.out, "--out")
    for of_topic in unique.values():
        grid.check_runs(of_topic, flags.workdir)
    flags.out.mkdir(parents=True, exist_ok=True)
    is_done = True
    for name, of_topic in runs.items():
        results = {result.run.name: result for result in grid.run_grid(unique[name], flags.workdir)}
        is_done &= write_topic(name, of_topic, results, flags.out)
    return int(not is_done)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

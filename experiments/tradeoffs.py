"""Trade-offs of accuracy with privacy, bits, attackers, time and topologies, on Fashion-MNIST among 100 clients:

    python -m experiments.tradeoffs --data=fashion_mnist.npz

trains the runs that are missing, and writes a CSV and a picture per topic. The same command resumes. Exit status: 0 =
all runs are done, or refused for what they ask; 1 = some failed; 2 = an error of input.
"""

import itertools
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from matplotlib.figure import Figure as Drawing

from experiments.figures import make_curves, set_x_ticks
from experiments.measures import read_final
from experiments.run import Runner, parse_paths
from experiments.spec import Experiment, Scale, Settings
from fedjax_het.cli.configuration.command_line import make_parser, split_overrides, with_exit_status
from fedjax_het.cli.report import costs
from fedjax_het.cli.runs import json_files, plots
from fedjax_het.cli.runs.figures import Panel, View
from fedjax_het.cli.runs.results import RunResults
from fedjax_het.cli.runs.setting_text import select_names

COMMON: Settings = {
    "model.name": "mlp",
    "model.hidden": "(32,)",
    "data.num_clients": "100",
    "data.partition.equal_sizes": "True",
    "rounds": "60",
    "num_seeds": "2",
    "layout": "vmapped",
    "data.path": "{fashion_mnist}",
}
ALGORITHMS: Mapping[str, Settings] = {
    "FedAvg": {"algorithm.name": "fedavg", "algorithm.weighting": "uniform"},
    "SCAFFOLD": {"algorithm.name": "scaffold", "algorithm.learning_rate": "0.02"},
    "FedLD": {"algorithm.name": "fedld", "algorithm.weighting": "uniform", "algorithm.lam": "0.03"},
    "FedMGC": {"algorithm.name": "fedmgc"},
}
"""Learning rates and lam are those of configs/fashion_mnist.py; nothing is tuned for a topic."""
ALPHAS = ("0.1", "0.5")
ACCURACY = "test accuracy, %"
DATA = {"fashion_mnist": "Fashion-MNIST's .npz file"}
REFUSED = "exit status 2: error:"
OWN, MEAN = "own aggregation", "plain mean"
_PLAIN_MEAN: Settings = {"aggregator.name": "mean", "aggregator.weighting": "uniform"}


class Point(NamedTuple):
    """One setting of a topic, for all rows and partitions.

    Attributes:
        curve: the label of the curve that it is on.
        x: its position; None to read it from the run.
        settings: the settings besides those of the row.
        only: the rows that it is made for; all if empty.
    """

    curve: str
    x: float | None
    settings: Settings
    only: tuple[str, ...] = ()


class Topic(NamedTuple):
    """One picture: a panel per row, such as an algorithm, and partition, a curve per kind of setting.

    Attributes:
        x_label: the label of the x axis.
        points: the points of every row.
        settings: the settings of all runs, besides `COMMON`.
        position: (run, round) -> x of an evaluation, for points that have none.
        is_over_time: whether every evaluation is a point, rather than the last one.
        x_scale: "log" or "linear".
        ticks: {x: name} of ticks with names of their own; they set the ends of the axis.
        y_range: the range of test accuracy in per cent.
        rows: {name: settings} of the rows.
        row_title: the title of their column in the CSV file.
    """

    x_label: str
    points: Sequence[Point]
    settings: Settings
    position: Callable[[RunResults, int], float] | None = None
    is_over_time: bool = False
    x_scale: str = "linear"
    ticks: Mapping[float, str] = {}
    y_range: tuple[float, float] = (0, 90)
    rows: Mapping[str, Settings] = ALGORITHMS
    row_title: str = "algorithm"

    @property
    def experiment(self) -> Experiment:
        """The runs: a row per row and partition, a column per point."""
        rows = {
            f"{name}, Dirichlet({alpha})": {**settings, "data.partition.alpha": alpha}
            for alpha, (name, settings) in itertools.product(ALPHAS, self.rows.items())
        }
        columns = {str(i): point.settings for i, point in enumerate(self.points)}
        return Experiment(
            title=f"Test accuracy over {self.x_label}",
            rows=rows,
            measures={ACCURACY: read_final("test/accuracy")},
            scales={"cpu": Scale("fashion_mnist", {**COMMON, **self.settings}, columns, data=DATA)},
            left_out=[
                (row, str(i))
                for row, (i, point) in itertools.product(rows, enumerate(self.points))
                if point.only and row.partition(",")[0] not in point.only
            ],
        )


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
        *(Point(OWN, None, _private(noise), ("FedAvg",)) for noise in _NOISE),
        # One amount of noise is enough to see that any is refused.
        Point(OWN, None, _private(_NOISE[0]), ("SCAFFOLD", "FedLD", "FedMGC")),
        Point(MEAN, _NO_NOISE, _PLAIN_MEAN, ("FedLD", "FedMGC")),
        *(Point(MEAN, None, {**_private(noise), **_PLAIN_MEAN}, ("FedLD", "FedMGC")) for noise in _NOISE),
    ],
    {**_POISSON, "cohort_size": "0", "evaluate_every": "60"},
    lambda run, round: _read_line(run, round, "privacy/epsilon"),
    x_scale="log",
    ticks={1: "1", 2: "2", 8: "8", _NO_NOISE: "none"},
)


def _count_megabits(run: RunResults, round: int) -> float:
    """The bits that clients sent until a round, in millions."""
    return costs.count_bits_up(next(line for line in run.lines if line["round"] == round)) / 1e6


COMPRESSION = Topic(
    "Mbit sent by clients",
    [
        Point("no compression", None, {}),
        Point("quantize, 16 levels", None, _stage("quantize", levels="16")),
        *(
            Point("top_k, error feedback", None, _stage("top_k", fraction=fraction, feedback="classic"))
            for fraction in ("0.01", "0.1")
        ),
        Point("drive", None, _stage("drive")),
        Point("sign, error feedback", None, _stage("sign", feedback="classic")),
    ],
    {"cohort_size": "10"},
    _count_megabits,
    x_scale="log",
    ticks={megabits: f"{megabits:g}" for megabits in (5, 30, 200, 1000)},
    y_range=(60, 85),
)

_RULE: Settings = {"aggregator.name": "trimmed_mean", "aggregator.num_attackers": "3", "aggregator.before": "nnm"}
_RULES: Mapping[str, Settings] = {OWN: {}, "NNM and trimmed mean, f = 3": _RULE}
_ATTACKS = {0.0: {}} | {x: _stage("attack_sign_flip", factor="5", fraction=f"{x / 100}") for x in (10.0, 30.0)}
ROBUST = Topic(
    "attackers, %",
    [Point(rule, x, {**settings, **attack}) for rule, settings in _RULES.items() for x, attack in _ATTACKS.items()],
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

_TOPOLOGIES = ("ring", "torus", "exponential")


def _gossip(curve: str, settings: Settings) -> list[Point]:
    return [Point(curve, None, {**settings, "algorithm.topology": name}, (name,)) for name in _TOPOLOGIES]


TOPOLOGIES = Topic(
    "Mbit sent by clients",
    [
        Point("FedAvg", None, {"algorithm.name": "fedavg", "algorithm.weighting": "uniform"}),
        *_gossip("D-PSGD", {"algorithm.name": "dpsgd"}),
        *_gossip("DFedAvgM", {"algorithm.name": "dfedavgm"}),
        *_gossip(
            "CHOCO, top 10 %",
            {
                **{"algorithm.name": "choco", "algorithm.gamma": "0.3"},
                **_stage("top_k", fraction="0.1", feedback="estimates"),
            },
        ),
    ],
    {"cohort_size": "0", "evaluate_every": "5"},
    _count_megabits,
    is_over_time=True,
    x_scale="log",
    ticks={megabits: f"{megabits:,}" for megabits in (100, 700, 5_000, 35_000)},
    y_range=(40, 85),
    rows={name: {} for name in _TOPOLOGIES},
    row_title="topology",
)
TOPICS = {
    "privacy": PRIVACY,
    "compression": COMPRESSION,
    "robust": ROBUST,
    "devices": DEVICES,
    "topologies": TOPOLOGIES,
}


# ---- results ---------------------------------------------------------------------------------------------------------
class Row(NamedTuple):
    """One line of a CSV: an evaluation, or a run that is not done."""

    panel: str
    curve: str
    x: float | None
    seeds: list[float]
    status: str


def read_rows(topic: Topic, runner: Runner) -> list[Row]:
    """Read the test accuracies of every evaluation of the runs, or of the last."""
    rows, runs = [], runner.read_runs()
    for panel, (i, point) in itertools.product(runner.experiment.rows, enumerate(topic.points)):
        if (place := (panel, str(i))) not in runner.places:
            continue
        if (run := runs.get(place)) is None:
            status = runner.read_status(place).replace(REFUSED, "refused:")
            rows.append(Row(panel, point.curve, point.x, [], status))
            continue
        rounds = sorted({line["round"] for line in run.lines})
        for number in rounds if topic.is_over_time else rounds[-1:]:
            seeds = [round(100 * line["test/accuracy"], 3) for line in run.lines if line["round"] == number]
            x = topic.position(run, number) if topic.position and point.x is None else point.x
            rows.append(Row(panel, point.curve, x, seeds, "done"))
    return rows


def draw(topic: Topic, rows: Sequence[Row]) -> Drawing:
    """Draw a row of panels per partition, in which each algorithm has one; a band is from seed to seed."""
    names, panels = list(dict.fromkeys(row.curve for row in rows)), []
    for title in topic.experiment.rows:
        shown = [row for row in rows if row.panel == title]
        curves = make_curves(((row.curve, row.x or 0.0, row.seeds) for row in shown if row.seeds), names)
        refused = dict.fromkeys(row.curve for row in shown if row.status.startswith("refused:"))
        refused_names = "" if refused.keys() == {row.curve for row in shown} else f": {', '.join(refused)}"
        x_label = f"{topic.x_label} (refused{refused_names})" if refused else topic.x_label
        panels.append(Panel(title, x_label, ACCURACY, curves, topic.y_range, x_scale=topic.x_scale))
    drawing = plots.draw_view(View("", panels), across=len(topic.rows), size=(2.7, 2.4))
    for axis in drawing.axes if topic.ticks else ():
        set_x_ticks(axis, topic.ticks)
        axis.set_xlim(0.8 * min(topic.ticks), 1.25 * max(topic.ticks))
    return drawing


def write_csv(name: str, rows: Sequence[Row], out: Path) -> None:
    """Write the rows of a topic."""
    topic, lines = TOPICS[name], []
    for row in rows:
        title, alpha = row.panel.removesuffix(")").split(", Dirichlet(")
        x = None if row.x is None else topic.ticks.get(row.x, f"{row.x:.6g}")
        mean = round(sum(row.seeds) / len(row.seeds), 3) if row.seeds else None
        lines.append((title, alpha, row.curve, x, mean, ";".join(map(str, row.seeds)), row.status))
    header = (topic.row_title, "alpha", "curve", topic.x_label, ACCURACY, "seeds", "status")
    json_files.write(out / f"{name}.csv", json_files.to_csv(header, lines))


@with_exit_status("stopped; the same command resumes")
def main(argv: Sequence[str]) -> int:
    """Run the command; return the exit status."""
    own, common = split_overrides(argv)
    parser = make_parser(
        "python -m experiments.tradeoffs",
        "Show what accuracy costs in privacy, bits, attackers, time and topologies: train and draw.",
    )
    parser.add_argument("--topic", default="all", help=f"{', '.join(TOPICS)}, comma-separated, or all")
    parser.add_argument("--data", required=True, help="Fashion-MNIST's .npz file")
    parser.add_argument("--workdir", type=Path, default=Path("runs/tradeoffs"), help="of the runs")
    parser.add_argument("--out", type=Path, default=Path("docs/images"), help="of the CSV files and pictures")
    flags = parser.parse_args(own)
    names, paths = select_names("--topic", flags.topic, TOPICS), parse_paths(DATA, [flags.data])
    json_files.check_writable(flags.out, "--out")
    runners = {name: Runner(TOPICS[name].experiment, "cpu", common, paths, flags.workdir) for name in names}
    flags.out.mkdir(parents=True, exist_ok=True)
    is_done = True
    for name, runner in runners.items():
        read = partial(read_rows, TOPICS[name], runner)
        runner.train(lambda name=name, read=read: write_csv(name, read(), flags.out))
        plots.write_drawing(flags.out / f"{name}.svg", draw, TOPICS[name], rows := read())
        is_done &= all(row.seeds or row.status.startswith("refused:") for row in rows)
    return int(not is_done)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Runs over client counts, clients per round and the number of clients, and what they measure."""

import itertools
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from experiments.measures import read_final
from experiments.run import Runner
from experiments.spec import Experiment, Scale, Settings
from experiments.tradeoffs import ALGORITHMS
from fedjax_het.cli.runs.results import RunResults

EXAMPLES_PER_CLIENT = 50
COMMON: Settings = {
    "algorithm.batch_size": "10",
    "model.name": "mlp",
    "model.hidden": "(32,)",
    "data.partition.name": "resampled_dirichlet",
    "data.partition.alpha": "0.3",
    "data.partition.examples_per_client": str(EXAMPLES_PER_CLIENT),
    "checkpoint_every": "0",  # only at the end: client states are large, and runs are short
    "layout": "chunked(1)",  # on one core up to sixteen times as fast as 300 clients at a time
    "memory_budget": "4GB",  # data that do not fit are streamed
}


class DataSet(NamedTuple):
    """The settings of one data set.

    Attributes:
        targets: target test accuracies in per cent; the rounds to each are counted.
        settings: the settings of all runs, which replace those of `ALGORITHMS`.
    """

    targets: tuple[float, float]
    settings: Settings = {}


DATA_SETS: Mapping[str, DataSet] = {
    "fashion_mnist": DataSet((70, 80)),
    "cifar10": DataSet((25, 30), {"algorithm.learning_rate": "0.01"}),
}
"""{the stem of the data's file name: its settings}."""
SCALES = {"cohorts": "accuracy", "populations": "accuracy", "costs": "costs"}
"""{part: the quantities that its runs measure}."""


class Plan(NamedTuple):
    """The grid of client counts.

    Attributes:
        cohorts: {clients per round: evaluate_every}, among `population` clients.
        populations: numbers of clients; `cohort` of them take part in a round.
        rounds: one of the two lengths at which accuracy is read; evaluated by all.
        visits: the other length, in client participations, so that all runs process the same number of examples.
        cost_intervals: number of timed intervals of a run with one seed that measures costs alone.
        cost_visits: minimum number of visits in an interval.
        cost_rounds: minimum number of rounds in an interval.
    """

    cohorts: Mapping[int, int] = {1: 60, 3: 20, 10: 10, 30: 4, 100: 2, 300: 2}
    population: int = 1000
    populations: Sequence[int] = (100, 1000, 10_000, 100_000)
    cohort: int = 30
    rounds: int = 60
    visits: int = 6000
    num_seeds: int = 2
    cost_intervals: int = 5
    cost_visits: int = 300
    cost_rounds: int = 10

    @property
    def counts(self) -> dict[str, list[tuple[int, int]]]:
        """The (number of clients, clients per round) of each part."""
        cohorts = [(self.population, cohort) for cohort in self.cohorts]
        populations = [(population, self.cohort) for population in self.populations]
        return dict(zip(SCALES, (cohorts, populations, list(dict.fromkeys(cohorts + populations))), strict=True))

    def make_experiment(self, part: str) -> Experiment:
        """Make the runs of a part: a row per algorithm, a column per pair of client counts."""
        columns = {_name(*pair): self._make_column(*pair, is_cost=part == "costs") for pair in self.counts[part]}
        scales = {SCALES[part]: Scale("fashion_mnist", COMMON, columns)}
        measures = {"accuracy": read_final("test/accuracy")}
        return Experiment("Accuracy and cost over client counts", ALGORITHMS, measures, scales)

    def _make_column(self, population: int, cohort: int, *, is_cost: bool) -> Settings:
        if is_cost:
            interval = max(self.cost_rounds, self.cost_visits // cohort)
            rounds, num_seeds = self.cost_intervals * interval, 1
        else:
            interval, num_seeds = self.cohorts[cohort], self.num_seeds
            rounds = max(self.rounds, self.visits // cohort)
        numbers = {
            "data.num_clients": population,
            "cohort_size": cohort,
            "rounds": rounds,
            "evaluate_every": interval,
            "num_seeds": num_seeds,
        }
        return {key: str(number) for key, number in numbers.items()}


def _name(population: int, cohort: int) -> str:
    return f"{population} clients, {cohort} per round"


# ---- results ---------------------------------------------------------------------------------------------------------
class Row(NamedTuple):
    """The measurements at a point; None or empty where a run is not done.

    Attributes:
        algorithm: name of the algorithm.
        population: number of clients.
        cohort: clients per round.
        by_rounds: test accuracies of the seeds after `Plan.rounds`, in per cent.
        by_visits: the same after `Plan.visits`.
        targets: the rounds to each target, mean over seeds; None where a seed does not reach it.
        seconds: seconds per round, of each timed interval.
        peak_mb: maximum memory of the device, computed from the compiled programs, with one seed.
        up_mb: upload of all clients of a round.
        where: client states and examples: "device", "host", "disk", "stream".
        status: the status of the runs of accuracy and of costs: "done", "not run", or the error.
    """

    algorithm: str
    population: int
    cohort: int
    by_rounds: Sequence[float] = ()
    by_visits: Sequence[float] = ()
    targets: Sequence[float | None] = (None, None)
    seconds: Sequence[float] = ()
    peak_mb: float | None = None
    up_mb: float | None = None
    where: tuple[str, str] = ("", "")
    status: tuple[str, str] = ("not run", "not run")

    def read_accuracy(self, plan: Plan, targets: Sequence[float], run: RunResults) -> "Row":
        """Return the row with the results of the run of accuracy."""
        seeds: dict[int, dict[int, float]] = {}
        for line in run.lines:
            seeds.setdefault(line["seed"], {})[line["round"]] = round(100 * line["test/accuracy"], 3)
        curves = list(seeds.values())
        return self._replace(
            by_rounds=[curve[plan.rounds] for curve in curves],
            by_visits=[curve[plan.visits // self.cohort] for curve in curves],
            targets=[_count_rounds(curves, target) for target in targets],
            up_mb=run.lines[-1]["traffic/up"] / run.done / 1e6,
        )

    def read_costs(self, run: RunResults) -> "Row":
        """Return the row with the results of the run of costs."""
        ends = [(line["round"], line["seconds"]) for line in run.lines]
        seconds = [(after[1] - before[1]) / (after[0] - before[0]) for before, after in itertools.pairwise(ends)]
        peak_mb = run.summary["facts"]["peak_bytes"] / 1e6 if run.summary else None
        where = (run.resolved["client_states"], run.resolved["examples"])
        return self._replace(seconds=seconds, peak_mb=peak_mb, where=where)


def _count_rounds(curves: Sequence[Mapping[int, float]], target: float) -> float | None:
    """The first evaluated round at which a seed's accuracy is at least the target; mean over the seeds."""
    first = [min((number for number, value in curve.items() if value >= target), default=None) for curve in curves]
    return None if None in first else float(np.mean(np.array(first, float)))


def read_rows(plan: Plan, targets: Sequence[float], runners: Mapping[str, Runner]) -> list[Row]:
    """Read all points, given the runner of each part."""
    parts: dict[tuple[str, int, int], str] = {}
    for part in ("cohorts", "populations"):
        for algorithm, pair in itertools.product(ALGORITHMS, plan.counts[part]):
            parts.setdefault((algorithm, *pair), part)
    runs, rows = {part: runner.read_runs() for part, runner in runners.items()}, []
    for (algorithm, population, cohort), part in parts.items():
        place = algorithm, _name(population, cohort)
        status = runners[part].read_status(place), runners["costs"].read_status(place)
        row = Row(algorithm, population, cohort, status=status)
        if run := runs[part].get(place):
            row = row.read_accuracy(plan, targets, run)
        if run := runs["costs"].get(place):
            row = row.read_costs(run)
        rows.append(row)
    return rows

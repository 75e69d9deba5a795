"""Points of the grid of client counts: the runs that measure them, and what they have measured."""

import itertools
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from fedjax_het.cli.configuration.config_files import find_config
from fedjax_het.cli.runs.results import RunResults
from fedjax_het.cli.sweep.grid import GridRun

from ..tradeoffs import ALGORITHMS

EXAMPLES_PER_CLIENT = 50
COMMON: Mapping[str, str] = {
    "algorithm.batch_size": "10",
    "model.name": "mlp",
    "model.hidden": "(32,)",
    "data.partition.name": "resampled_dirichlet",
    "data.partition.alpha": "0.3",
    "data.partition.examples_per_client": str(EXAMPLES_PER_CLIENT),
    "checkpoint_every": "0",  # of the end alone: client states are large, and runs are short
    "layout": "chunked(1)",  # on one core up to sixteen times as fast as 300 clients side by side
    "memory_budget": "4GB",  # what does not fit is streamed
}


class DataSet(NamedTuple):
    """What differs from data set to data set.

    Attributes:
        targets: test accuracies in per cent, to which rounds are counted.
        settings: of all runs, in place of those of `ALGORITHMS`.
    """

    targets: tuple[float, float]
    settings: Mapping[str, str] = {}


DATA_SETS: Mapping[str, DataSet] = {
    "fashion_mnist": DataSet((70, 80)),
    "cifar10": DataSet((25, 30), {"algorithm.learning_rate": "0.01"}),
}
"""{the stem of the data's file name: what differs}."""
PARTS = ("cohorts", "populations", "costs")


class Plan(NamedTuple):
    """The grid of client counts.

    Attributes:
        cohorts: {clients per round: evaluate_every}, among `population` clients.
        populations: numbers of clients, of which `cohort` take part in a round.
        rounds: one of the two lengths at which accuracy is read; evaluated by all.
        visits: the other one, in clients that have taken part: all have processed equally many examples.
        cost_intervals: that are timed, by a run with one seed that measures costs alone.
        cost_visits: of an interval, at least.
        cost_rounds: of an interval, at least.
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


class Place(NamedTuple):
    """A point of the grid: an algorithm, the number of clients, and those of a round."""

    algorithm: str
    population: int
    cohort: int


def make_places(plan: Plan) -> dict[str, list[Place]]:
    """List the points whose runs each part trains."""
    cohorts = [Place(name, plan.population, cohort) for name in ALGORITHMS for cohort in plan.cohorts]
    populations = [Place(name, population, plan.cohort) for name in ALGORITHMS for population in plan.populations]
    return dict(zip(PARTS, (cohorts, populations, list(dict.fromkeys(cohorts + populations))), strict=True))


def make_run(plan: Plan, place: Place, common: Mapping[str, str], *, is_cost: bool) -> GridRun:
    """Make the run that measures the accuracy, or the costs, at a point.

    Args:
        plan: the grid.
        place: the point.
        common: the settings of all runs, which take precedence.
        is_cost: which of the two.
    """
    if is_cost:
        every = max(plan.cost_rounds, plan.cost_visits // place.cohort)
        rounds, num_seeds = plan.cost_intervals * every, 1
    else:
        every, num_seeds = plan.cohorts[place.cohort], plan.num_seeds
        rounds = max(plan.rounds, plan.visits // place.cohort)
    counts = {
        "data.num_clients": place.population,
        "cohort_size": place.cohort,
        "rounds": rounds,
        "evaluate_every": every,
        "num_seeds": num_seeds,
    }
    own = {**ALGORITHMS[place.algorithm], **{key: str(count) for key, count in counts.items()}}
    own = {key: text for key, text in own.items() if key not in common}
    return GridRun(find_config("fashion_mnist"), {**COMMON, **common}, own)


class Row(NamedTuple):
    """What the runs at a point have measured; None or empty where a run is not done.

    Attributes:
        by_rounds: test accuracies of the seeds after `Plan.rounds`, in per cent.
        by_visits: the same after `Plan.visits`.
        targets: the rounds to each target, mean over seeds; None where a seed does not reach it.
        seconds: per round, of each timed interval.
        peak_mb: what the device holds at most, as counted from the compiled programs, with one seed.
        up_mb: what all clients of a round send.
        where: client states and examples: "device", "host", "disk", "stream".
        status: of the runs of accuracy and of costs: "done", "not run", or the error.
    """

    place: Place
    by_rounds: Sequence[float] = ()
    by_visits: Sequence[float] = ()
    targets: Sequence[float | None] = (None, None)
    seconds: Sequence[float] = ()
    peak_mb: float | None = None
    up_mb: float | None = None
    where: tuple[str, str] = ("", "")
    status: tuple[str, str] = ("not run", "not run")


def read_row(plan: Plan, place: Place, targets: Sequence[float], runs: Sequence[RunResults | str]) -> Row:
    """Read a point.

    Args:
        plan: the grid.
        place: the point.
        targets: accuracies in per cent.
        runs: the runs of accuracy and of costs, or why they are not done.
    """
    accuracy, cost = runs
    status = [run if isinstance(run, str) else "done" for run in runs]
    row = Row(place, status=(status[0], status[1]))
    if isinstance(accuracy, RunResults):
        seeds: dict[int, dict[int, float]] = {}
        for line in accuracy.lines:
            seeds.setdefault(line["seed"], {})[line["round"]] = round(100 * line["test/accuracy"], 3)
        curves = list(seeds.values())
        by_visits = [curve[plan.visits // place.cohort] for curve in curves]
        reached = [_count_rounds(curves, target) for target in targets]
        row = row._replace(by_rounds=[curve[plan.rounds] for curve in curves], by_visits=by_visits, targets=reached)
        row = row._replace(up_mb=accuracy.lines[-1]["traffic/up"] / accuracy.done / 1e6)
    if isinstance(cost, RunResults) and cost.summary:
        ends = [(line["round"], line["seconds"]) for line in cost.lines]
        seconds = [(after[1] - before[1]) / (after[0] - before[0]) for before, after in itertools.pairwise(ends)]
        where = (cost.resolved["client_states"], cost.resolved["examples"])
        row = row._replace(seconds=seconds, peak_mb=cost.summary["facts"]["peak_bytes"] / 1e6, where=where)
    return row


def _count_rounds(curves: Sequence[Mapping[int, float]], target: float) -> float | None:
    """The first evaluated round at which a seed's accuracy is at least the target; mean over the seeds."""
    first = [min((number for number, value in curve.items() if value >= target), default=None) for curve in curves]
    return None if None in first else float(np.mean(np.array(first, float)))

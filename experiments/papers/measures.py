"""Numbers that are read off finished runs: a value a seed, of one column."""

import csv
import string
from collections.abc import Callable

import numpy as np

from fedjax_het.errors import InputError

from ..runs import diagnostics_log
from ..runs.records import Json, MetricLines
from ..runs.run_directory import RunDirectory
from ..runs.run_files import SELECTED

Measure = Callable[[RunDirectory, str], list[float]]
"""(a run, the column that is read) -> a value a seed."""
Seen = Callable[[Json], float]
"""A line of diagnostics.jsonl -> a number."""


def final(name: str) -> Measure:
    """A figure after the last round, "test/accuracy", in per cent."""
    return lambda run, column: [100 * value for value in run.read("summary.json")["final"][name]["seeds"]]


def on_test(score: str = "accuracy") -> Measure:
    """The score on the common test set, in per cent: the mean of clients' own models where they have some, as FedLD
    judges FedBN and FedPAC, the server's else."""
    return _first_of(f"personal_test/{score}_mean", f"test/{score}")


def on_own(score: str = "accuracy", *, is_selected: bool = False) -> Measure:
    """The mean over clients of the score on their own test examples, in per cent: of their own models where they have
    some, as HarmoFL judges FedBN, of the server's else.

    is_selected: of the round that does best on the clients' validation examples, for each seed, not of the last.
    """
    return _first_of(f"personal/{score}_mean", f"clients/{score}_mean", is_selected=is_selected)


def _first_of(*names: str, is_selected: bool = False) -> Measure:
    def measure(run: RunDirectory, column: str) -> list[float]:
        summary = run.read("summary.json")
        figures = _selected(run, summary)["figures"] if is_selected else summary["final"]
        return [100 * value for value in next(figures[name] for name in names if name in figures)["seeds"]]

    return measure


def unseen(score: str = "accuracy") -> Measure:
    """The score on the domain left out, in per cent; of several the mean."""

    def measure(run: RunDirectory, column: str) -> list[float]:
        figures = run.read("summary.json")["final"]
        found = [figure["seeds"] for name, figure in figures.items() if _is(name, "unseen/", f"/{score}")]
        return [100 * sum(values) / len(values) for values in zip(*found, strict=True)]

    return measure


def _selected(run: RunDirectory, summary: Json) -> Json:
    """Raises InputError where no round was selected."""
    if summary["selected"] is None:
        raise InputError(f"{run.path}: nobody has validation examples. Set data.valid_fraction, and train it anew.")
    return summary["selected"]


def own(score: str = "accuracy", *, is_selected: bool = False) -> Measure:
    """The score of the client that the column names, on its own test examples, in per cent: of its own model where it
    has one, of the server's else. Columns A, B, ... are clients in their order.   is_selected: as in `on_own`."""

    def measure(run: RunDirectory, column: str) -> list[float]:
        rows = [row for row in _client_rows(run, is_selected) if str(row["is_newcomer"]) == "False"]
        names = list(dict.fromkeys(row["client"] for row in rows))
        by_letter = dict(zip(string.ascii_uppercase, names, strict=False))
        name = column if column in names else by_letter.get(column)
        if name is None:
            raise InputError(f"{run.path}: no client for the column '{column}'; its clients are {', '.join(names)}.")
        of_client = [row for row in rows if row["client"] == name]
        figures = [(row[f"personal_{score}"], row[score]) for row in of_client]
        return [100 * float(server if own in ("", None) else own) for own, server in figures]

    return measure


def _client_rows(run: RunDirectory, is_selected: bool) -> list[Json]:
    """After the last round, or of each seed's selected one."""
    if not is_selected:
        with (run / "per_client.csv").open(newline="") as file:
            return list(csv.DictReader(file))
    summary = run.read("summary.json")
    rounds = _selected(run, summary)["rounds"]
    lines = {(line["seed"], line["round"]): line["clients"] for line in MetricLines(run / SELECTED).read()}
    seeds = sorted({seed for seed, _ in lines})
    return [row for seed, round in zip(seeds, rounds, strict=True) for row in lines[seed, round]]


def looked(diagnostic: str, quantity: str, round: int = 0) -> Measure:
    """A number that a diagnostic told before this round; of several, one a client say, the mean. round: -1 is the last
    that was looked at."""

    def measure(run: RunDirectory, column: str) -> list[float]:
        lines = MetricLines(run / diagnostics_log.NAME).read()
        chosen = lines[-1]["round"] if round < 0 else round
        return [value(line) for line in lines if line["round"] == chosen]

    value = seen(diagnostic, quantity)
    return measure


def seen(diagnostic: str, quantity: str) -> Seen:
    """A number that a diagnostic told; of several the mean."""
    return lambda line: float(np.mean(line[diagnostic][quantity]))


def class_loss(chosen: slice) -> Seen:
    """The mean of `classes`' losses over the cohort's clients and these of the classes that a client has, ordered from
    its largest to its smallest."""

    def value(line: Json) -> float:
        found = line["classes"]
        of_clients, present = [], line["cohort"]["is_present"]
        for losses, counts, is_present in zip(found["losses"], found["counts"], present, strict=True):
            by_size = sorted((-count, loss) for loss, count in zip(losses, counts, strict=True) if count)
            of_clients += [np.mean([loss for _, loss in by_size[chosen]])] * is_present
        return float(np.mean(of_clients))

    return value


def last_look_of(value: Seen) -> Measure:
    """Of each seed."""
    return lambda run, column: [value(line) for line in last_look(run)]


def largest_share(run: RunDirectory, column: str) -> list[float]:
    """How much of a client's training examples are of its largest class, in per cent: the mean over clients."""
    return [100 * float(np.mean(np.max(shares(run), axis=1)))]


def shares(run: RunDirectory) -> np.ndarray:
    """[clients, classes]: each client's training examples by class, rows with sum 1."""
    counts = np.array([list(client["classes"].values()) for client in run.read("partition.json")["clients"]], float)
    return counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)


def rise(radius: float) -> Measure:
    """By how much the loss rises at this distance from the server's model, in the last look of `landscape`: the mean
    over the points of the grid that lie within half a step of the radius, and over clients."""

    def measured(surface: np.ndarray, distance: np.ndarray) -> float:
        step = distance.max() * np.sqrt(2) / (len(surface) - 1)
        ring = np.abs(distance - radius) <= step / 2
        return float(np.mean(surface[ring]) - surface.flat[distance.argmin()])

    return _over_surfaces(measured)


def offset(run: RunDirectory, column: str) -> list[float]:
    """How far from the server's model the lowest loss of the grid lies, as above; the mean over clients."""
    return _over_surfaces(lambda surface, distance: float(distance.flat[surface.argmin()]))(run, column)


def _over_surfaces(measured: Callable[[np.ndarray, np.ndarray], float]) -> Measure:
    def measure(run: RunDirectory, column: str) -> list[float]:
        found = []
        for line in last_look(run):
            steps = np.array(line["landscape"]["steps"])
            surfaces = np.array(line["landscape"]["clients"], float)[line["cohort"]["is_present"]]
            found.append(float(np.mean([measured(each, np.hypot(steps[:, None], steps)) for each in surfaces])))
        return found

    return measure


def last_look(run: RunDirectory) -> list[Json]:
    """The lines of the last look, a seed each."""
    lines = MetricLines(run / diagnostics_log.NAME).read()
    return [line for line in lines if line["round"] == lines[-1]["round"]]


def _is(name: str, begins: str, ends: str) -> bool:
    return name.startswith(begins) and name.endswith(ends)

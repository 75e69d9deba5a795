"""Measures of the papers: numbers read from finished runs, one per seed, for one column."""

import string
from collections.abc import Callable
from typing import Literal

import numpy as np

from fedjax_het.cli.runs.results import CLIENT_SCORE, TEST_SCORE, RunResults, read_seeds
from fedjax_het.cli.runs.run_files import Json
from fedjax_het.errors import InputError

from .spec import Measure

LineValue = Callable[[Json], float]
"""A line of diagnostics.jsonl -> a number."""


# ---- scores, in per cent ---------------------------------------------------------------------------------------------
def read_final(*names: str, is_selected: bool = False) -> Measure:
    """Read the first of these figures that a run has, such as "test/accuracy".

    Args:
        names: the names of the figures.
        is_selected: whether to read, for each seed, the round that is best on the clients' validation examples instead
            of the last round.
    """

    return lambda run, column: [100 * value for value in read_seeds(run, *names, is_selected=is_selected)]


def read_test_score(score: str = "accuracy") -> Measure:
    """Read the score on the common test set.

    That is the mean over the clients' own models where they have any, as FedLD evaluates FedBN and FedPAC, otherwise
    the score of the server's model.
    """
    return read_final(*(name.format(score) for name in TEST_SCORE))


def read_mean_client_score(score: str = "accuracy", *, is_selected: bool = False) -> Measure:
    """Read the mean over clients of the score on their own test examples.

    Args:
        score: the score of personal models where there are any, as HarmoFL evaluates FedBN, otherwise of the server's.
        is_selected: as in `read_final`.
    """
    return read_final(*(name.format(score) for name in CLIENT_SCORE), is_selected=is_selected)


def read_unseen_score(score: str = "accuracy") -> Measure:
    """Read the score on the domain left out; the mean if there are several."""

    def measure(run: RunResults, column: str) -> list[float]:
        seeds = [
            figure["seeds"]
            for name, figure in run.final.items()
            if name.startswith("unseen/") and name.endswith(f"/{score}")
        ]
        return [100 * sum(values) / len(values) for values in zip(*seeds, strict=True)]

    return measure


def read_client_score(score: str = "accuracy", *, is_selected: bool = False) -> Measure:
    """Read the score of the client that the column names, on its own test examples.

    Columns A, B, ... are the clients in their order.

    Args:
        score: the score of its personal model if there is one, otherwise of the server's.
        is_selected: as in `read_final`.
    """

    def measure(run: RunResults, column: str) -> list[float]:
        rows = run.selected_clients if is_selected else run.clients
        rows = [row for row in rows if str(row["is_newcomer"]) == "False"]
        names = list(dict.fromkeys(row["client"] for row in rows))
        by_letter: dict[str, str] = dict(zip(string.ascii_uppercase, names, strict=False))
        name = column if column in names else by_letter.get(column)
        if name is None:
            raise InputError(
                f"{run.directory}: no client for the column '{column}'; its clients are {', '.join(names)}."
            )
        client_rows = [row for row in rows if row["client"] == name]
        pairs = [(row[f"personal_{score}"], row[score]) for row in client_rows]
        scores = [server if own in ("", None) else own for own, server in pairs]
        if any(value in ("", None) for value in scores):
            raise InputError(
                f"{run.directory}: client '{name}' has no test examples of its own. Set data.client_test_fraction."
            )
        return [100 * float(value) for value in scores]

    return measure


# ---- diagnostics -----------------------------------------------------------------------------------------------------
def read_first(value: LineValue) -> Measure:
    """Read a value of the lines of diagnostics before the first round."""
    return lambda run, column: [value(line) for line in run.snapshots if line["round"] == 0]


def read_last(value: LineValue) -> Measure:
    """Read a value of the last lines with diagnostics."""
    return lambda run, column: list(map(value, run.last_snapshots))


def mean_quantity(diagnostic: str, quantity: str) -> LineValue:
    """Compute a quantity of a diagnostic of a line; the mean of several values."""
    return lambda line: float(np.mean(line[diagnostic][quantity]))


def mean_class_loss(chosen: slice) -> LineValue:
    """Compute the mean of the losses of `classes` over the clients of the cohort and over some classes of each client.

    Args:
        chosen: a slice of the client's classes, ordered from the largest to the smallest.
    """

    def value(line: Json) -> float:
        classes, present = line["classes"], line["cohort"]["is_present"]
        losses_of_clients = []
        for losses, counts, is_present in zip(classes["losses"], classes["counts"], present, strict=True):
            by_size = sorted((-count, loss) for loss, count in zip(losses, counts, strict=True) if count)
            losses_of_clients += [np.mean([loss for _, loss in by_size[chosen]])] * is_present
        return float(np.mean(losses_of_clients))

    return value


def read_loss_rise(radius: float) -> Measure:
    """Read the rise of the loss at this distance from the server's model, from the last lines of `landscape`.

    It is the mean over the points of the grid within half a step of the radius, and over clients.
    """

    def measure_surface(surface: np.ndarray, distance: np.ndarray) -> float:
        step = distance.max() * np.sqrt(2) / (len(surface) - 1)
        ring = np.abs(distance - radius) <= step / 2
        return float(np.mean(surface[ring]) - surface.flat[distance.argmin()])

    return _read_surfaces(measure_surface)


def read_server_step(quantity: Literal["length", "cosine"], *, is_first: bool = False) -> Measure:
    """Compare the server's step with the plain mean of the same updates, weighted by examples.

    It is computed from the last lines of `weights`, `conflict` and `norms`.

    Args:
        quantity: the length of the step in lengths of the mean, or the cosine between them.
        is_first: whether to read the lines before the first round instead.
    """

    def measure(run: RunResults, column: str) -> list[float]:
        sizes = np.array([client["train"] for client in run.partition_clients], float)

        def value(line: Json) -> float:
            shares = np.where(line["cohort"]["is_present"], sizes[line["cohort"]["ids"]], 0)
            lengths = np.array(line["norms"]["updates"], float)
            gram = np.array(line["conflict"]["cosines"], float) * lengths * lengths[:, None]
            pair = np.array([line["weights"]["weights"], shares / shares.sum()], float)
            (step, product), (_, mean) = pair @ gram @ pair.T
            return float(np.sqrt(step / mean) if quantity == "length" else product / np.sqrt(step * mean))

        return (read_first if is_first else read_last)(value)(run, column)

    return measure


def read_minimum_distance(run: RunResults, column: str) -> list[float]:
    """Read the distance of the lowest loss of the grid from the server's model; the mean over clients."""
    return _read_surfaces(lambda surface, distance: float(distance.flat[surface.argmin()]))(run, column)


def _read_surfaces(measure_surface: Callable[[np.ndarray, np.ndarray], float]) -> Measure:
    def measure(run: RunResults, column: str) -> list[float]:
        means = []
        for line in run.last_snapshots:
            steps = np.array(line["landscape"]["steps"])
            distance = np.hypot(steps[:, None], steps)
            surfaces = np.array(line["landscape"]["clients"], float)[line["cohort"]["is_present"]]
            means.append(float(np.mean([measure_surface(surface, distance) for surface in surfaces])))
        return means

    return measure


# ---- partitions ------------------------------------------------------------------------------------------------------
def read_largest_share(run: RunResults, column: str) -> list[float]:
    """Read the share of a client's largest class in its training examples, in per cent; the mean over clients."""
    return [100 * float(np.mean(np.max(class_shares(run), axis=1)))]


def class_shares(run: RunResults) -> np.ndarray:
    """Return [clients, classes]: each client's training examples by class, rows with sum 1."""
    counts = np.array([list(client["classes"].values()) for client in run.partition_clients], float)
    return counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)

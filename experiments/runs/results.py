"""From finished runs to the tables of a paper: who is measured on what, by which model, is each table's title."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedjax_het.errors import InputError

from . import data_usage
from .run_directory import RunDirectory
from .run_files import PER_CLIENT, DamagedFileError, read_rows
from .tables import SUMMARIES, Table, Value

Seeds = list[float]
Figures = dict[str, dict[str, Seeds]]
"""{row: {column: a value a seed}}, in the order of the runs."""

_TITLES = {
    "unseen": "the server's model on the domain left out",
    "test": "the server's model on the common test set",
    "clients": "the server's model on each client's own test examples",
    "personal": "each client's own model on its own test examples",
    "personal_test": "each client's own model on the common test set",
}
_WHEN = {"final": "after the last round", "selected": "of the round that was best on the clients' validation examples"}


class FinishedRun(NamedTuple):
    """A run, and the row that it stands in; runs of one row are of other seeds, or leave another domain out."""

    label: str
    directory: Path
    left_out: str = ""  # the domain, where every one is left out in turn


def result_tables(runs: Sequence[FinishedRun]) -> list[Table]:
    """Those that the runs have figures for, after the last round, and by source validation where they have it."""
    found = []
    for when in _WHEN:
        found += [_shared(runs, kind, when) for kind in ("unseen", "test")]
    return [table for table in found + client_scores(runs) if table.columns]


def client_scores(runs: Sequence[FinishedRun]) -> list[Table]:
    """A column a client, from each run's per_client.csv."""
    return [_by_client(runs, kind) for kind in ("clients", "personal", "personal_test")]


def _shared(runs: Sequence[FinishedRun], kind: str, when: str) -> Table:
    """Of the server's model, from summaries."""
    figures: Figures = defaultdict(dict)
    score = "accuracy"
    for run in runs:
        summary = RunDirectory(run.directory).read("summary.json") or {}
        measured = _measured(summary, when)
        score = score_of(measured)
        for name, figure in measured.items():
            group, _, rest = name.partition("/")
            place, _, what = rest.rpartition("/")
            if group == kind and what == score:
                column = place or (f"without {run.left_out}" if run.left_out else kind)
                figures[run.label].setdefault(column, []).extend(figure["seeds"])
    name = kind if when == "final" else f"{kind}_{when}"
    return _table(name, f"{_noun(score)} of {_TITLES[kind]}, {_WHEN[when]}", figures, _basis(runs, kind, figures))


def _measured(summary: Mapping[str, Any], when: str) -> Mapping[str, Any]:
    part = summary.get(when) or {}
    return part.get("figures", part)


def score_of(names: Iterable[str]) -> str:
    """Dice where there are masks, whose accuracy is a matter of how large the background is."""
    return "dice" if any(name.rpartition("/")[2].startswith("dice") for name in names) else "accuracy"


def _noun(score: str) -> str:
    return {"dice": "Dice coefficient", "accuracy": "Accuracy"}[score]


def _by_client(runs: Sequence[FinishedRun], kind: str) -> Table:
    """From per_client.csv. Where domains are left out in turn, a client's figure is the mean of the runs it is in."""
    prefix = "" if kind == "clients" else f"{kind}_"
    found: dict[str, dict[str, dict[str, Seeds]]] = {}  # row, client, seed
    score = "accuracy"
    for run in runs:
        rows = [row for row in _clients(run.directory / PER_CLIENT) if row["is_newcomer"] == "False"]
        score = "dice" if rows and "dice" in rows[0] else "accuracy"
        for row in rows:
            if row.get(prefix + score):
                seeds = found.setdefault(run.label, {}).setdefault(row["client"], {})
                seeds.setdefault(row["seed"], []).append(float(row[prefix + score]))
    figures = {
        label: {client: [float(np.mean(values)) for values in seeds.values()] for client, seeds in clients.items()}
        for label, clients in found.items()
    }
    over = ", mean over the other domains left out" if any(run.left_out for run in runs) else ""
    return _table(
        kind, f"{_noun(score)} of {_TITLES[kind]}, {_WHEN['final']}{over}", figures, _basis(runs, kind, figures)
    )


def _clients(path: Path) -> list[dict[str, str]]:
    try:
        rows = read_rows(path)
        if rows is None:
            raise DamagedFileError(path, "it is gone")
    except DamagedFileError as error:
        again = "Delete summary.json beside it, and the run's own command writes both anew from the last checkpoint."
        raise InputError(f"{error} {again}") from error
    return rows


def _basis(runs: Sequence[FinishedRun], kind: str, figures: Figures) -> str:
    """What those runs that have figures train on, and what the figures are measured on."""
    known = []
    for run in runs:
        partition = RunDirectory(run.directory).read("partition.json")
        if partition is not None and run.label in figures:
            known.append((run.label, run.left_out, partition))
    return data_usage.describe_runs(known, [] if kind == "unseen" else [kind])


def _table(name: str, title: str, figures: Figures, note: str) -> Table:
    """mean and worst, over columns, are taken seed by seed."""
    columns = list(dict.fromkeys(column for row in figures.values() for column in row))
    rows = []
    for label, row in figures.items():
        values = [_value(row[column]) if column in row else None for column in columns]
        if len(columns) > 1:
            is_whole = len(row) == len(columns) and len({len(seeds) for seeds in row.values()}) == 1
            stack = np.array([row[column] for column in columns]) if is_whole else None
            values += [None, None] if stack is None else [_value(stack.mean(axis=0)), _value(stack.min(axis=0))]
        rows.append((label, values))
    extra = list(SUMMARIES) if len(columns) > 1 else []
    return Table(name, title, columns + extra, rows, note=note)


def _value(seeds: Sequence[float]) -> Value:
    values = np.asarray(seeds, float)
    return Value(float(values.mean()), float(values.std()) if len(values) > 1 else None)

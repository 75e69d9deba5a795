"""The rows of the report: grouping of runs, their labels and baselines, and tables of their runs and settings."""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fedjax_het.cli.runs.records import flatten
from fedjax_het.cli.runs.results import MissingRun, RunResults
from fedjax_het.cli.runs.run_directory import run_identity
from fedjax_het.cli.runs.setting_text import algorithm_title, short_name
from fedjax_het.cli.runs.tables import Table
from fedjax_het.engine import main_score

_READERS = ("arrays", "folders")
_UNSEEN = "data.unseen"
_NAMES = ("algorithm.name", "data.name", "model.name")
_NOT_DISTINGUISHING = (
    *("diagnostics", "diagnose_every", "evaluate_every", "checkpoint_every", "personal_on_test"),
    *("data.path", "data.cache"),
)
_MACHINE = ("devices", "layout", "conv", "client_states", "examples")


class Row(NamedTuple):
    """One run; where each domain is left out in turn, the runs that differ only in the domain."""

    label: str
    number: int  # of the row, and of its color
    runs: list[RunResults]

    @property
    def algorithm(self) -> str:
        return self.runs[0].settings["algorithm"]["name"]

    @property
    def first(self) -> RunResults:
        """The run that represents the row where one is enough: its partition and its diagnostics."""
        return self.runs[0]


def data_name(run: RunResults) -> str:
    """Return the name of the data set: of the config, or of the file given to a reader of any data."""
    data = run.settings["data"]
    if data["name"] in _READERS and data.get("path"):
        return data.get("title") or Path(data["path"]).stem
    return data.get("title") or data.get("builder") or data["name"]


def left_out(run: RunResults) -> str:
    """Return the domain that the run leaves out, or ""."""
    return run.settings["data"].get("unseen", "")


def figure_names(rows: Sequence[Row]) -> list[str]:
    """Return the names of the figures in metrics.jsonl of any run."""
    return list(dict.fromkeys(name for row in rows for run in row.runs for line in run.lines[:1] for name in line))


def find_score(rows: Sequence[Row]) -> str:
    """Return the main score; see `engine.main_score`."""
    return main_score(figure_names(rows))


def group_by_data(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """Return {data set: its rows}, because figures of different data cannot be compared."""
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(data_name(row.first), []).append(row)
    return groups


def make_rows(runs: Sequence[RunResults]) -> list[Row]:
    """Group runs into rows.

    The label of a row is the algorithm's name as papers print it and the fewest settings that distinguish it, or the
    directory if two runs are equal.
    """
    groups: list[list[RunResults]] = []
    for run in runs:
        group = next((group for group in groups if _belongs_to(run, group)), None)
        if group is None:
            groups.append([run])
        else:
            group.append(run)
    labels = _make_labels([_distinguishing_settings(group[0]) for group in groups])
    for place in (lambda run: run.directory.name, lambda run: run.directory):
        twice = {label for label in labels if labels.count(label) > 1}
        labels = [f"{a} ({place(group[0])})" if a in twice else a for a, group in zip(labels, groups, strict=True)]
    return [Row(label, i, group) for i, (label, group) in enumerate(zip(labels, groups, strict=True))]


def _belongs_to(run: RunResults, group: Sequence[RunResults]) -> bool:
    others = {left_out(other) for other in group}
    return left_out(run) not in others and "" not in others | {left_out(run)} and _is_same(run, group[0], (_UNSEEN,))


def _is_same(a: RunResults, b: RunResults, ignored: Iterable[str] = ()) -> bool:
    first, second = _distinguishing_settings(a), _distinguishing_settings(b)
    return all(first.get(key) == second.get(key) for key in first.keys() | second.keys() if key not in ignored)


def _distinguishing_settings(run: RunResults) -> dict[str, Any]:
    """Return the settings by which two runs are different experiments."""
    settings = flatten(run_identity(run.settings)) | {"data.name": data_name(run)}
    return {key: value for key, value in settings.items() if key not in _NOT_DISTINGUISHING}


def _make_labels(settings: Sequence[Mapping[str, Any]]) -> list[str]:
    labels = [algorithm_title(run_settings["algorithm.name"]) for run_settings in settings]
    keys = [*_NAMES[1:], *dict.fromkeys(key for run_settings in settings for key in run_settings)]
    for key in keys:
        for label in {label for label in labels if labels.count(label) > 1}:
            equal = [i for i, other in enumerate(labels) if other == label]
            if len({repr(settings[i].get(key)) for i in equal}) > 1:
                for i in equal:
                    value = settings[i].get(key)
                    labels[i] += f" {value}" if key in _NAMES else f" {short_name(key)}={value}"
    return labels


def find_baseline(row: Row, rows: Sequence[Row], algorithm: str) -> Row | None:
    """Find the row of this algorithm with which a row can be compared.

    All settings but those of the algorithm have to be equal; of several such rows, it is the one that shares most
    options of the algorithm.
    """

    def own(candidate: Row) -> dict[str, Any]:
        settings = _distinguishing_settings(candidate.first)
        return {key: value for key, value in settings.items() if key.startswith("algorithm.")}

    def is_comparable(candidate: Row) -> bool:
        return _is_same(row.first, candidate.first, {_UNSEEN, "num_seeds", *own(row), *own(candidate)})

    def count_equal_options(candidate: Row) -> int:
        return sum(own(row).get(key) == value for key, value in own(candidate).items())

    candidates = [other for other in rows if other.algorithm == algorithm != row.algorithm and is_comparable(other)]
    return max(candidates, key=count_equal_options, default=None)


# ---- tables of runs and settings -------------------------------------------------------------------------------------
def tabulate_runs(rows: Sequence[Row], missing: Sequence[MissingRun]) -> Table:
    """Tabulate every run with its directory and progress, and the runs that were never started."""
    columns = ["state", "algorithm", "data", "model", "clients", "rounds", "seeds", "directory", "note"]
    above = os.path.commonpath([run.directory.resolve().parent for row in rows for run in row.runs])
    body = [(row.label, _describe_run(run, above)) for row in rows for run in row.runs]
    body += [(run.name, [f"no run: {run.status}", *[None] * (len(columns) - 1)]) for run in missing]
    has_notes = any(values[-1] for _, values in body)
    num_columns = len(columns) if has_notes else len(columns) - 1
    return Table("runs", "Runs", columns[:num_columns], [(label, values[:num_columns]) for label, values in body])


def _describe_run(run: RunResults, above: str) -> list[str | None]:
    partition = run.settings["data"].get("partition", {})
    division = [partition["name"]] if partition else []
    division += [f"alpha {partition['alpha']}"] if "alpha" in partition else []
    without = [f"without {left_out(run)}"] if left_out(run) else []
    clients = len([c for c in run.partition["clients"] if not c["is_newcomer"]]) if run.partition else None
    cohort = run.settings.get("cohort_size") or clients
    first, num_seeds = run.settings["seed"], run.settings["num_seeds"]
    return [
        run.status,
        run.settings["algorithm"]["name"],
        ", ".join([data_name(run), *division, *without]),
        run.settings["model"]["name"],
        f"{clients}, {cohort} per round" if clients else None,
        str(run.done if run.is_finished else run.settings["rounds"]),
        f"{first}" if num_seeds == 1 else f"{first} to {first + num_seeds - 1}",
        os.path.relpath(run.directory.resolve(), above),
        "; ".join(run.notes) or None,
    ]


def tabulate_settings(rows: Sequence[Row]) -> tuple[Table, dict[str, str]]:
    """Return (a table of the settings in which rows differ, the settings that all rows share)."""
    return _tabulate_differences("settings", "Settings that differ", rows, lambda run: flatten(run.settings))


def tabulate_versions(rows: Sequence[Row]) -> tuple[Table, dict[str, str]]:
    """Return (a table of the versions and machines in which rows differ, those that all rows share)."""

    def versions(run: RunResults) -> Mapping[str, Any]:
        packages = (run.summary or {}).get("versions", {})
        return packages | {name: run.resolved[name] for name in _MACHINE if run.resolved.get(name) is not None}

    return _tabulate_differences("versions", "Versions and machines that differ", rows, versions)


def _tabulate_differences(
    name: str, title: str, rows: Sequence[Row], read: Callable[[RunResults], Mapping[str, Any]]
) -> tuple[Table, dict[str, str]]:
    values = [[read(run) for run in row.runs] for row in rows]
    keys = dict.fromkeys(key for runs in values for run in runs for key in run)
    texts = {
        key: [", ".join(dict.fromkeys(_format_value(run, key) for run in runs)) for runs in values] for key in keys
    }
    common = {key: cells[0] for key, cells in texts.items() if len(set(cells)) == 1}
    differing = [(key, list(cells)) for key, cells in texts.items() if key not in common]
    return Table(name, title, [row.label for row in rows], differing), common


def _format_value(values: Mapping[str, Any], key: str) -> str:
    if key not in values:
        return "–"
    value = values[key]
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "none" if value in (None, "") else str(value)

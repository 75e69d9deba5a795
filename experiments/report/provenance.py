"""Where figures come from: the runs, their settings, the versions that they ran with."""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from ..runs.records import flatten
from ..runs.tables import Table
from .rows import Row, data_name, left_out
from .run_paths import Absent
from .run_reader import RunData


def runs(rows: Sequence[Row], absent: Sequence[Absent]) -> Table:
    """Every run, where it lies and how far it is; cells that were never started say why."""
    columns = ["state", "algorithm", "data", "model", "clients", "rounds", "seeds", "directory", "note"]
    above = os.path.commonpath([run.directory.resolve().parent for row in rows for run in row.runs])
    body = [(row.label, _line(run, above)) for row in rows for run in row.runs]
    body += [(cell.name, [f"no run: {cell.status}", *[None] * (len(columns) - 1)]) for cell in absent]
    is_noted = any(values[-1] for _, values in body)
    kept = len(columns) if is_noted else len(columns) - 1
    return Table("runs", "Runs", columns[:kept], [(label, values[:kept]) for label, values in body])


def _line(run: RunData, above: str) -> list[str | None]:
    data = run.settings["data"]
    partition = data.get("partition", {})
    division = [partition["name"]] if partition else []
    division += [f"alpha {partition['alpha']}"] if "alpha" in partition else []
    without = [f"without {left_out(run)}"] if left_out(run) else []
    name = ", ".join([data_name(run), *division, *without])
    clients = len([each for each in run.partition["clients"] if not each["is_newcomer"]]) if run.partition else None
    cohort = run.settings.get("cohort_size") or clients
    first, several = run.settings["seed"], run.settings["num_seeds"]
    return [
        run.status,
        run.settings["algorithm"]["name"],
        name,
        run.settings["model"]["name"],
        f"{clients}, {cohort} a round" if clients else None,
        str(run.settings["rounds"]),
        f"{first}" if several == 1 else f"{first} to {first + several - 1}",
        os.path.relpath(run.directory.resolve(), above),
        "; ".join(run.notes) or None,
    ]


def settings(rows: Sequence[Row]) -> tuple[Table, dict[str, str]]:
    """(the settings in which rows differ, those that all have)."""
    return _apart("settings", "Settings that differ", rows, lambda run: flatten(run.settings))


def versions(rows: Sequence[Row]) -> tuple[Table, dict[str, str]]:
    """(versions and machines in which rows differ, those that all have)."""
    machine = ("devices", "layout", "conv", "client_states", "examples")

    def of(run: RunData) -> Mapping[str, Any]:
        known = (run.summary or {}).get("versions", {})
        return known | {name: run.choices[name] for name in machine if run.choices.get(name) is not None}

    return _apart("versions", "Versions and machines that differ", rows, of)


def _apart(
    name: str, title: str, rows: Sequence[Row], of: Callable[[RunData], Mapping[str, Any]]
) -> tuple[Table, dict[str, str]]:
    each = [[of(run) for run in row.runs] for row in rows]
    keys = dict.fromkeys(key for runs in each for run in runs for key in run)
    texts = {key: [_together(_said(run, key) for run in runs) for runs in each] for key in keys}
    common = {key: found[0] for key, found in texts.items() if len(set(found)) == 1}
    differing = [(key, list(found)) for key, found in texts.items() if key not in common]
    return Table(name, title, [row.label for row in rows], differing), common


def _said(values: Mapping[str, Any], key: str) -> str:
    if key not in values:
        return "–"
    value = values[key]
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "none" if value in (None, "") else str(value)


def _together(texts: Iterable[str]) -> str:
    return ", ".join(dict.fromkeys(texts))

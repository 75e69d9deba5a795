"""Where figures come from: the runs, their settings, the versions that they ran with."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from experiments.report.finding import Absent
from experiments.report.reading import Run
from experiments.report.rows import Row, flat
from experiments.tables import Table


def runs(rows: Sequence[Row], absent: Sequence[Absent]) -> Table:
    """Every run, where it lies and how far it is; cells that were never started say why."""
    columns = ["state", "algorithm", "data", "model", "clients", "rounds", "seeds", "directory", "note"]
    body = [(row.label, _line(run)) for row in rows for run in row.runs]
    body += [(cell.name, [f"no run: {cell.status}", *[None] * (len(columns) - 1)]) for cell in absent]
    return Table("runs", "Runs", columns, body)


def _line(run: Run) -> list[str | None]:
    data = run.settings["data"]
    partition = data.get("partition", {})
    division = (
        ", ".join([partition["name"], *(f"{k} {v}" for k, v in partition.items() if k == "alpha")]) if partition else ""
    )
    name = ", ".join(filter(None, [data["name"], division, f"without {data['unseen']}" if data.get("unseen") else ""]))
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
        str(run.directory),
        "; ".join(run.notes) or None,
    ]


def settings(rows: Sequence[Row]) -> tuple[Table, dict[str, str]]:
    """(the settings in which rows differ, those that all have)."""
    return _apart("settings", "Settings that differ", rows, lambda run: flat(run.settings))


def versions(rows: Sequence[Row]) -> tuple[Table, dict[str, str]]:
    """(versions and machines in which rows differ, those that all have)."""
    machine = ("devices", "layout", "conv", "client_states", "examples")

    def of(run: Run) -> Mapping[str, Any]:
        known = (run.summary or {}).get("versions", {})
        return known | {name: run.choices[name] for name in machine if run.choices.get(name) is not None}

    return _apart("versions", "Versions and machines that differ", rows, of)


def _apart(
    name: str, title: str, rows: Sequence[Row], of: Callable[[Run], Mapping[str, Any]]
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
    return (
        {True: "yes", False: "no", None: "none", "": "none"}.get(value, str(value))
        if isinstance(value, bool | str | None)
        else str(value)
    )


def _together(texts: Iterable[str]) -> str:
    return ", ".join(dict.fromkeys(texts))

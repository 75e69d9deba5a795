"""The table of the costs of runs: seconds, memory, traffic."""

from collections.abc import Callable, Sequence

import numpy as np

from ..runs.results import RunResults
from ..runs.tables import ColumnFormat, Table, Value
from .rows import Row

EPSILON = "epsilon"
"""The column of what runs have cost in privacy; it is there if any run has."""
_TRAFFIC = ("traffic/down", "traffic/up")
_UNITS = ("B", "kB", "MB", "GB", "TB", "PB")
_NOTE = (
    "Seconds: of the whole run with all its seeds, evaluation included, compilation not. Seconds per round: from the "
    "first to the last evaluation, divided by the rounds between. Memory: per device, as counted before the run. Down, "
    "up: what a client receives and sends in a round. Traffic: of all clients of one seed over the run so far. "
    "kB = 1000 B. Machines may differ: see the settings."
)


def format_bytes(num_bytes: float) -> str:
    """Format with three digits: "19.2 kB"."""
    power = 0
    while abs(num_bytes) >= 999.5 and power < len(_UNITS) - 1:
        num_bytes, power = num_bytes / 1000, power + 1
    return f"{num_bytes:.3g} {_UNITS[power]}"


def format_seconds(value: float) -> str:
    """Format with three digits, in milliseconds or seconds; in hours and minutes from ten minutes on."""
    if value < 1:
        return f"{1000 * value:.3g} ms"
    if value < 600:
        return f"{value:.3g} s"
    return f"{value // 3600:.0f} h {value % 3600 // 60:.0f} min"


def count_traffic(run: RunResults, round: int) -> float | None:
    """Count the bytes of all clients of one seed up to an evaluation, down and up.

    For runs that have not counted them they follow from what a client receives and sends, which is known at the end of
    a run; None before.
    """
    lines = [line for line in run.lines if line["round"] == round]
    if lines and all(name in line for name in _TRAFFIC for line in lines):
        return float(np.mean([sum(line[name] for name in _TRAFFIC) for line in lines]))
    if run.summary is None:
        return None
    facts = run.summary["facts"]
    reporting = np.mean([line["num_reporting"] for line in run.lines])
    return float(round * (facts["cohort_size"] * facts["bytes_down"] + reporting * facts["bytes_up"]))


def count_bits_up(run: RunResults, round: int) -> float | None:
    """Count the bits that all clients of one seed have sent up to an evaluation; None for runs that have not."""
    lines = [line for line in run.lines if line["round"] == round]
    if not lines or not all("traffic/up" in line for line in lines):
        return None
    return float(np.mean([line.get("traffic/bits_up", 8 * line["traffic/up"]) for line in lines]))


def seconds_per_round(run: RunResults) -> float | None:
    """Measure from the first to the last evaluation; with a single one, from the start to it."""
    if not run.lines:
        return None
    first, last = run.lines[0], run.lines[-1]
    if first["round"] == last["round"]:
        return last["seconds"] / last["round"]
    return (last["seconds"] - first["seconds"]) / (last["round"] - first["round"])


def _fact(name: str) -> Callable[[RunResults], float | None]:
    return lambda run: run.summary["facts"][name] if run.summary else None


_BYTES, _SECONDS = ColumnFormat(format_bytes, min), ColumnFormat(format_seconds, min)
_UNRANKED_SECONDS = ColumnFormat(format_seconds)
_COUNT = ColumnFormat(lambda value: f"{value:,.0f}")
_COLUMNS: dict[str, tuple[ColumnFormat, Callable[[RunResults], float | None]]] = {
    "rounds": (_COUNT, lambda run: run.done),
    "parameters": (_COUNT, _fact("num_parameters")),
    "seconds": (_UNRANKED_SECONDS, lambda run: run.lines[-1]["seconds"] if run.lines else None),
    "seconds per round": (_SECONDS, seconds_per_round),
    "compilation": (_UNRANKED_SECONDS, _fact("compile_seconds")),
    "memory held": (_BYTES, lambda run: sum(run.summary["facts"]["held_bytes"].values()) if run.summary else None),
    "peak memory": (_BYTES, _fact("peak_bytes")),
    "down per client": (_BYTES, _fact("bytes_down")),
    "up per client": (_BYTES, _fact("bytes_up")),
    "traffic": (ColumnFormat(format_bytes), lambda run: count_traffic(run, run.done) if run.lines else None),
    EPSILON: (
        ColumnFormat(lambda value: f"{value:.3g}", min),
        lambda run: run.lines[-1].get("privacy/epsilon") if run.lines else None,
    ),
    "dropped uploads": (_COUNT, lambda run: sum(run.summary.get("dropped_uploads", ())) if run.summary else None),
}


def make_table(rows: Sequence[Row]) -> Table:
    """Tabulate the means over the runs of each row."""
    shown = dict(_COLUMNS)
    if not any(_mean(row, shown[EPSILON][1]) for row in rows):
        del shown[EPSILON]
    body = [(row.label, [_mean(row, read) for _, read in shown.values()]) for row in rows]
    formats = {name: form for name, (form, _) in shown.items()}
    return Table("costs", "Time, memory, traffic", list(shown), body, formats, _NOTE)


def _mean(row: Row, read: Callable[[RunResults], float | None]) -> Value | None:
    known = [value for run in row.runs if (value := read(run)) is not None]
    return Value(float(np.mean(known))) if known else None

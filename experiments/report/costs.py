"""What runs cost: seconds, memory, bytes on the wire."""

from collections.abc import Callable, Sequence

import numpy as np

from ..runs.tables import Shown, Table, Value
from .rows import Row
from .run_reader import RunData

_TRAFFIC = ("traffic/down", "traffic/up")
_UNITS = ("B", "kB", "MB", "GB", "TB", "PB")
_NOTE = (
    "Seconds: of the whole run, evaluation included, compiling not; all its seeds side by side. A round: seconds from "
    "the first to the last evaluation by the rounds between. Memory: on each device, as counted before the run. Down, "
    "up: what a client receives and sends in a round. On the wire: of all clients of one seed together, over the run "
    "so far. kB = 1000 B. Machines may differ: see the settings."
)


def size(num_bytes: float) -> str:
    """Three digits: "19.2 kB"."""
    power = 0
    while abs(num_bytes) >= 999.5 and power < len(_UNITS) - 1:
        num_bytes, power = num_bytes / 1000, power + 1
    return f"{num_bytes:.3g} {_UNITS[power]}"


def seconds(value: float) -> str:
    """Three digits, in milliseconds or seconds; hours and minutes from ten minutes on."""
    if value < 1:
        return f"{1000 * value:.3g} ms"
    if value < 600:
        return f"{value:.3g} s"
    return f"{value // 3600:.0f} h {value % 3600 // 60:.0f} min"


_BYTES, _SECONDS = Shown(size, min), Shown(seconds, min)
_COUNT = Shown(lambda value: f"{value:,.0f}")


def wire(run: RunData, round: int) -> float | None:
    """Bytes of all clients of one seed up to an evaluation, down and up, as the run has counted them. Of runs that have
    not, from what a client receives and sends: None before the end, where that is written.
    """
    lines = [line for line in run.lines if line["round"] == round]
    if lines and all(name in line for name in _TRAFFIC for line in lines):
        return float(np.mean([sum(line[name] for name in _TRAFFIC) for line in lines]))
    if run.summary is None:
        return None
    facts = run.summary["facts"]
    reporting = np.mean([line["num_reporting"] for line in run.lines])
    return float(round * (facts["cohort_size"] * facts["bytes_down"] + reporting * facts["bytes_up"]))


def a_round(run: RunData) -> float | None:
    """Seconds, between the first evaluation and the last; with a single one, up to it."""
    if not run.lines:
        return None
    first, last = run.lines[0], run.lines[-1]
    if first["round"] == last["round"]:
        return last["seconds"] / last["round"]
    return (last["seconds"] - first["seconds"]) / (last["round"] - first["round"])


def _fact(name: str) -> Callable[[RunData], float | None]:
    return lambda run: run.summary["facts"][name] if run.summary else None


_COLUMNS: dict[str, tuple[Shown, Callable[[RunData], float | None]]] = {
    "rounds": (_COUNT, lambda run: run.done),
    "parameters": (_COUNT, _fact("num_parameters")),
    "seconds": (Shown(seconds), lambda run: run.lines[-1]["seconds"] if run.lines else None),
    "a round": (_SECONDS, a_round),
    "compiling": (Shown(seconds), _fact("compile_seconds")),
    "memory held": (_BYTES, lambda run: sum(run.summary["facts"]["held_bytes"].values()) if run.summary else None),
    "memory at most": (_BYTES, _fact("peak_bytes")),
    "down a client": (_BYTES, _fact("bytes_down")),
    "up a client": (_BYTES, _fact("bytes_up")),
    "on the wire": (Shown(size), lambda run: wire(run, run.done) if run.lines else None),
    "dropped uploads": (_COUNT, lambda run: sum(run.summary.get("dropped_uploads", ())) if run.summary else None),
}


def table(rows: Sequence[Row]) -> Table:
    """A row's means over the runs in it."""
    body = [(row.label, [_mean(row, figure) for _, figure in _COLUMNS.values()]) for row in rows]
    shown = {name: form for name, (form, _) in _COLUMNS.items()}
    return Table("costs", "Time, memory, traffic", list(_COLUMNS), body, shown, _NOTE)


def _mean(row: Row, figure: Callable[[RunData], float | None]) -> Value | None:
    known = [value for run in row.runs if (value := figure(run)) is not None]
    return Value(float(np.mean(known))) if known else None

"""How rows learn: score and loss against rounds, seconds and bytes."""

from collections.abc import Callable, Sequence

import numpy as np

from ..runs import plots
from . import costs
from .figures import Curve, Figure, Panel, View
from .rows import Row
from .run_reader import RunData

_AXES: dict[str, tuple[str, Callable[[RunData, int], float | None]]] = {
    "by rounds": ("round", lambda run, round: round),
    "by seconds": ("seconds", lambda run, round: _seconds(run)[round]),
    "by bytes": ("MB on the wire", lambda run, round: _megabytes(run, round)),
}
_CAPTION = (
    "The mean over seeds, and a band from the lowest to the highest. Seconds compare runs of the same machine only; "
    "bytes are those of all clients of one seed, down and up."
)


def figure(rows: Sequence[Row], score: str, noun: str) -> Figure | None:
    """A panel a group (test set, clients, own models, domains left out, ...) and kind, those that any row has."""
    names = list(dict.fromkeys(name for row in rows for run in row.runs for line in run.lines[:1] for name in line))
    wanted = [
        (found, f"{title}: {noun if kind == score else 'loss'}", kind)
        for group, title in _groups(names).items()
        for kind in (score, "loss")
        if (found := next((name for name in (f"{group}/{kind}", f"{group}/{kind}_mean") if name in names), None))
    ]
    views = []
    for view, (x_label, at) in _AXES.items():
        panels = []
        for name, title, kind in wanted:
            found = [_curve(row, name, at) for row in rows]
            bounds = (0, None) if kind == "loss" else (0, 1)
            panels.append(Panel(title, x_label, "loss" if kind == "loss" else noun, list(filter(None, found)), bounds))
        views.append(View(view, panels))
    return Figure("curves", "Learning curves", _CAPTION, views) if wanted else None


def _groups(names: Sequence[str]) -> dict[str, str]:
    unseen = dict.fromkeys(name.rpartition("/")[0] for name in names if name.startswith("unseen/"))
    return {group: f"unseen {group.removeprefix('unseen/')}" for group in unseen} | plots.NAMES


def _curve(row: Row, name: str, at: Callable[[RunData, int], float | None]) -> Curve | None:
    """Of all runs and seeds of a row; rounds that one of its runs has not reached are left out."""
    runs = [run for run in row.runs if any(name in line for line in run.lines)]
    if not runs:
        return None
    rounds = sorted(set.intersection(*({line["round"] for line in run.lines} for run in runs)))
    x = [[at(run, round) for run in runs] for round in rounds]
    if not rounds or any(value is None for values in x for value in values):
        return None
    lines = [line for run in runs for line in run.lines]
    values = [np.array([line.get(name) for line in lines if line["round"] == each], float) for each in rounds]
    band = [[float(end(v)) for v in values] if len(values[0]) > 1 else None for end in (np.min, np.max)]
    return Curve(
        row.label, row.number, [float(np.mean(each)) for each in x], [float(np.mean(v)) for v in values], *band
    )


def _megabytes(run: RunData, round: int) -> float | None:
    num_bytes = costs.wire(run, round)
    return None if num_bytes is None else num_bytes / 1e6


def _seconds(run: RunData) -> dict[int, float]:
    return {line["round"]: line["seconds"] for line in run.lines}

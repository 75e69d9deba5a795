"""Learning curves of the rows: scores and losses against rounds, seconds, bytes, and bits sent through an uplink."""

from collections.abc import Callable, Sequence

import numpy as np

from fedjax_het.cli.report import costs
from fedjax_het.cli.report.phases import common_starts
from fedjax_het.cli.report.rows import Row, figure_names, find_score
from fedjax_het.cli.runs.data_usage import find_figures
from fedjax_het.cli.runs.figures import Curve, Figure, Panel, View, mean_curve
from fedjax_het.cli.runs.run_files import Json
from fedjax_het.cli.runs.tables import score_title

_Position = Callable[[Json], float | None]
_AXES: dict[str, tuple[str, _Position]] = {
    "by rounds": ("round", lambda line: line["round"]),
    "by seconds": ("seconds", lambda line: line["seconds"]),
    "by bytes": ("MB of traffic", lambda line: costs.count_traffic(line) / 1e6),
    "by epsilon": ("epsilon", lambda line: line.get("privacy/epsilon")),
    "by virtual seconds": ("seconds on the virtual clock", lambda line: line.get("virtual_seconds")),
    "by bits": ("Mbit sent by clients", lambda line: costs.count_bits_up(line) / 1e6),
}
_CAPTION = (
    "Mean over seeds, with a band from minimum to maximum. Seconds are comparable only between runs on the same "
    "machine. Bytes are those of all clients of one seed, down and up. The virtual clock is the simulated time of the "
    "clients. Smoothing, an exponential moving average with the given weight, affects only this page."
)
_BITS_CAPTION = " Bits are those that clients have sent after the stages of the uplink."


def make_figure(rows: Sequence[Row]) -> Figure | None:
    """Draw the score and the loss of each group (test set, clients, own models, ...) that any row of a data set has."""
    score = find_score(rows)
    kinds = {score: (score_title(score), (0, 1)), "loss": ("loss", (0, None))}
    selected = find_figures(figure_names(rows), *kinds)
    views = []
    has_uplink = any("traffic/bits_up" in line for row in rows for run in row.runs for line in run.lines)
    for view, (x_label, position) in _AXES.items():
        panels, starts = [], common_starts(rows) if view == "by rounds" else ()
        for name, group, kind in selected:
            curves = list(filter(None, (_make_curve(row, name, position) for row in rows)))
            title, y_range = kinds[kind]
            panels.append(Panel(f"{group}: {title}", x_label, title, curves, y_range, x_lines=starts))
        if view == "by rounds" or (any(panel.marks for panel in panels) and (has_uplink or view != "by bits")):
            views.append(View(view, panels))
    caption = _CAPTION + _BITS_CAPTION * has_uplink
    return Figure("curves", "Learning curves", caption, views) if selected else None


def _make_curve(row: Row, name: str, position: _Position) -> Curve | None:
    """Make the curve over all runs and seeds of a row, without rounds that one of its runs has not reached."""
    runs = [run for run in row.runs if any(name in line for line in run.lines)]
    if not runs:
        return None
    rounds = sorted(set.intersection(*({line["round"] for line in run.lines} for run in runs)))
    lines = [[line for run in runs for line in run.lines if line["round"] == round] for round in rounds]
    x = [[position(line) for line in own] for own in lines]
    if not rounds or any(value is None for values in x for value in values):
        return None
    seeds = [[line.get(name) for line in own] for own in lines]
    return mean_curve(row.label, row.number, [float(np.mean(np.array(numbers, float))) for numbers in x], seeds)

"""Figures as data, which are drawn with Plotly on the report's page and with Matplotlib in files."""

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from fedjax_het.cli.runs.data_usage import find_figures
from fedjax_het.engine import find_metric, main_score

LIGHT = ("#0063a8", "#c94a00", "#00805c", "#a8457f", "#8a6a00", "#5b5bd6", "#007f99", "#7a4b2a", "#c0273f", "#5f6a76")
DARK = ("#5aaef0", "#ff8f4a", "#35c795", "#ee8fc4", "#e3b341", "#a3a3ff", "#4ccbe0", "#d3a27f", "#ff7d8f", "#aab4bf")
"""Colors of the rows on a light and on a dark background; a row has the same color in every figure."""

MARGIN = 0.02
"""Margin around a fixed range, so that points on its boundary are drawn completely."""


class Curve(NamedTuple):
    """A line over x, and a band from low to high; None or NaN is a gap."""

    label: str
    color: int  # the number of the row
    x: Sequence[float]
    y: Sequence[float | None]
    low: Sequence[float | None] | None = None
    high: Sequence[float | None] | None = None


class Points(NamedTuple):
    """One point per client, with a bar from low to high."""

    label: str
    color: int
    x: Sequence[str]
    y: Sequence[float | None]
    low: Sequence[float | None] | None = None
    high: Sequence[float | None] | None = None


class Heat(NamedTuple):
    """A heat map of a matrix z [y, x].

    scale: "amount" from 0 to its maximum, "signed" symmetric around 0, "level" from its minimum to its maximum.
    """

    x: Sequence[str] | Sequence[float]
    y: Sequence[str] | Sequence[float]
    z: Sequence[Sequence[float | None]]
    scale: str
    unit: str
    is_contour: bool = False


Mark = Curve | Points | Heat


class Panel(NamedTuple):
    """One pair of axes: curves and points of any number of rows, or one heat map."""

    title: str
    x_label: str
    y_label: str
    marks: Sequence[Mark]
    y_range: tuple[float, float | None] | None = None
    x_names: list[str] | None = None  # the order of points
    is_wide: bool = False
    rows: tuple[str, ...] = ()  # labels of the rows that a heat map belongs to
    x_scale: str = "linear"  # or "log"
    y_scale: str = "linear"
    x_lines: tuple[float, ...] = ()  # vertical lines, such as the starts of phases


class View(NamedTuple):
    """One of the alternative sets of panels of a figure, between which a reader of the page chooses."""

    name: str
    panels: list[Panel]


class Figure(NamedTuple):
    name: str  # the stem of its file names
    title: str
    caption: str
    views: list[View]
    start: int = 0  # the view that is shown first


def color_range(view: View, panel: Panel) -> tuple[float | None, float | None]:
    """The range of the color scale of a panel's heat map.

    All heat maps of a view share one range so that they can be compared, except amounts, which have their own.
    """
    own = [mark for mark in panel.marks if isinstance(mark, Heat)]
    is_shared = own and own[0].scale != "amount"
    heats = [mark for other in view.panels for mark in other.marks if isinstance(mark, Heat)] if is_shared else own
    known = [value for heat in heats for row in heat.z for value in row if value is not None and math.isfinite(value)]
    if not known:
        return None, None
    largest = max(map(abs, known)) or 1.0
    return {"signed": (-largest, largest), "amount": (0.0, largest)}.get(heats[0].scale, (min(known), max(known)))


def file_stems(figure: Figure) -> list[str]:
    """The file names of its views without their endings: `conflict_cosines_round_21`."""
    if len(figure.views) == 1:
        return [figure.name]
    return [re.sub(r"[^\w.=+-]+", "_", f"{figure.name}_{view.name}") for view in figure.views]


def mean_curve(label: str, color: int, x: Sequence[float], seeds: Sequence[Sequence[float | None]]) -> Curve:
    """Make the curve of the means over the seeds at each x, with a band from low to high where there are several."""
    numbers = [np.array(values, dtype=float) for values in seeds]
    band = [[float(end(v)) for v in numbers] if max(map(len, numbers)) > 1 else None for end in (np.min, np.max)]
    return Curve(label, color, list(x), [float(np.mean(v)) for v in numbers], *band)


def mean_points(label: str, color: int, values: Mapping[str, Sequence[float | None]]) -> Points:
    """Make a point per name at the mean of its values, with a bar from the lowest to the highest."""
    arrays = [np.array(numbers, dtype=float) for numbers in values.values()]
    means, lows, highs = ([float(over(array)) for array in arrays] for over in (np.mean, np.min, np.max))
    return Points(label, color, list(values), means, lows, highs)


def learning_curves(lines: Sequence[Mapping[str, Any]], starts: Sequence[float] = ()) -> View:
    """Two panels of one run: its main scores (accuracy, Dice of masks, ...) and its losses against rounds.

    Args:
        lines: the lines of metrics.jsonl.
        starts: the starts of phases, if the data of clients change with the round.
    """
    names = lines[0].keys()
    rounds = sorted({line["round"] for line in lines})
    kinds = (main_score(names), "loss")
    found = find_figures(names, *kinds)
    colors = list(dict.fromkeys(title for _, title, _ in found))
    panels = []
    for kind in kinds:
        curves = []
        for name, title in [(name, title) for name, title, own_kind in found if own_kind == kind]:
            seeds = [[line[name] for line in lines if line["round"] == round] for round in rounds]
            curves.append(mean_curve(title, colors.index(title), rounds, seeds))
        label = f"{kind} ({curves[0].label})" if len(curves) == 1 else kind
        metric = find_metric(kind)
        y_range = (0, 1) if metric is None or metric.unit == "fraction" else None
        y_range = (0, None) if kind == "loss" else y_range
        panels.append(Panel("", "round", label, curves, y_range, x_lines=tuple(starts)))
    return View("", panels)


def partition_heat(clients: Sequence[Mapping[str, Any]], unit: str, is_share: bool = False) -> Heat:
    """The training examples of each client (across) in each class (down).

    Args:
        clients: the records of partition.json.
        unit: the label of the color scale.
        is_share: whether to show each client's examples as shares of all its examples.
    """
    counts = np.array([list(client["classes"].values()) for client in clients], float).T
    z = counts / np.maximum(counts.sum(axis=0), 1) if is_share else counts
    return Heat([client["client"] for client in clients], list(clients[0]["classes"]), z.tolist(), "amount", unit)

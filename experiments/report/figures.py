"""A figure as data: what is drawn, said once, for the page and for the printed files."""

import math
import re
from collections.abc import Sequence
from typing import NamedTuple

LIGHT = ("#0063a8", "#c94a00", "#00805c", "#a8457f", "#8a6a00", "#5b5bd6", "#007f99", "#7a4b2a", "#c0273f", "#5f6a76")
DARK = ("#5aaef0", "#ff8f4a", "#35c795", "#ee8fc4", "#e3b341", "#a3a3ff", "#4ccbe0", "#d3a27f", "#ff7d8f", "#aab4bf")
"""Colours of the rows, on light and on dark ground; a row has the same in every figure."""

MARGIN = 0.02
"""Room beyond a fixed range, so that what lies on its edge is seen whole."""


class Curve(NamedTuple):
    """A line over x, and a band from low to high; None is a gap."""

    label: str
    colour: int  # the row's number
    x: list[float]
    y: list[float | None]
    low: list[float | None] | None = None
    high: list[float | None] | None = None


class Points(NamedTuple):
    """A point a client, with a bar from low to high."""

    label: str
    colour: int
    x: list[str]
    y: list[float | None]
    low: list[float | None] | None = None
    high: list[float | None] | None = None


class Heat(NamedTuple):
    """A matrix z [y, x] as colour. scale: "amount" from 0, "signed" around 0, or "level" of no particular zero."""

    x: list[str] | list[float]
    y: list[str] | list[float]
    z: list[list[float | None]]
    scale: str
    unit: str
    is_contour: bool = False


Mark = Curve | Points | Heat


class Panel(NamedTuple):
    """One pair of axes: curves and points of any number of rows, or one heat-map."""

    title: str
    x_label: str
    y_label: str
    marks: Sequence[Mark]
    y_range: tuple[float, float | None] | None = None
    x_names: list[str] | None = None  # the order of points
    is_wide: bool = False
    rows: tuple[str, ...] = ()  # labels of the rows that a heat-map belongs to


class View(NamedTuple):
    """One way of looking at a figure; a reader chooses between them."""

    name: str
    panels: list[Panel]


class Figure(NamedTuple):
    name: str  # what its files are called
    title: str
    caption: str
    views: list[View]
    start: int = 0  # the view that is shown first


def bounds(view: View, panel: Panel) -> tuple[float | None, float | None]:
    """The ends of a map's colours: one for all maps of a view, which are to be compared; amounts have their own."""
    own = [mark for mark in panel.marks if isinstance(mark, Heat)]
    is_shared = own and own[0].scale != "amount"
    heats = [mark for each in view.panels for mark in each.marks if isinstance(mark, Heat)] if is_shared else own
    known = [value for heat in heats for row in heat.z for value in row if value is not None and math.isfinite(value)]
    if not known:
        return None, None
    largest = max(map(abs, known)) or 1.0
    return {"signed": (-largest, largest), "amount": (0.0, largest)}.get(heats[0].scale, (min(known), max(known)))


def stems(figure: Figure) -> list[str]:
    """What the files of its views are called, without their endings: `conflict_cosines_round_21`."""
    if len(figure.views) == 1:
        return [figure.name]
    return [re.sub(r"[^\w.=+-]+", "_", f"{figure.name}_{view.name}") for view in figure.views]

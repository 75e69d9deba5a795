"""Figures as PNG and SVG for papers, with Matplotlib: on white, a legend of their own."""

import math
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure as Drawing
from matplotlib.ticker import PercentFormatter

from ..runs import json_files, plots
from .figures import LIGHT, MARGIN, Curve, Figure, Heat, Panel, Points, View, bounds, stems

_MARKERS = "osD^P*vXh"
_MAPS = {
    "amount": LinearSegmentedColormap.from_list("amount", ["#f4f6f8", LIGHT[0], "#00223c"]),
    "signed": plt.get_cmap("RdBu"),
    "level": plt.get_cmap("viridis"),
}
_ENDINGS = {"png": {}, "svg": {"Date": None}}  # an SVG without a date is the same file again


def write(figure: Figure, folder: Path) -> None:
    """`curves_by_rounds.png` and `.svg`, and so for every view."""
    for stem, view in zip(stems(figure), figure.views, strict=True):
        style = plots.STYLE | {"font.size": 9, "svg.fonttype": "none", "svg.hashsalt": "report"}
        with plots.try_drawing(folder / stem), plt.rc_context(style):
            drawn = draw(view)
            drawn.draw_without_rendering()
            drawn.set_layout_engine("none")  # what is laid out once need not be for every format
            for ending, about in _ENDINGS.items():
                json_files.write(
                    folder / f"{stem}.{ending}", partial(drawn.savefig, dpi=150, format=ending, metadata=about)
                )
            plt.close(drawn)


def draw(view: View) -> Drawing:
    """Two panels side by side; wide ones below each other."""
    is_wide = any(panel.is_wide for panel in view.panels)
    across = 1 if is_wide else min(2, len(view.panels))
    down = math.ceil(len(view.panels) / across)
    figure, axes = plt.subplots(down, across, figsize=(9 if is_wide else 4.6 * across, 3.4 * down), squeeze=False)
    figure.set_layout_engine("constrained")
    for axis, panel in zip(axes.flat, view.panels, strict=False):
        _panel(axis, panel, bounds(view, panel))
    for axis in axes.flat[len(view.panels) :]:
        axis.set_axis_off()
    lines = {line.get_label(): line for axis in axes.flat for line in axis.get_lines() if line.get_label()[0] != "_"}
    if len(lines) > 1:
        figure.legend(lines.values(), lines.keys(), loc="outside lower center", ncols=4, frameon=False)
    return figure


def _panel(axis: Axes, panel: Panel, ends: tuple[float | None, float | None]) -> None:
    axis.set(title=plots.escape_label(panel.title), xlabel=panel.x_label, ylabel=panel.y_label)
    points = [mark for mark in panel.marks if isinstance(mark, Points)]
    for mark in panel.marks:
        if isinstance(mark, Curve):
            _curve(axis, mark)
        elif isinstance(mark, Heat):
            _heat(axis, mark, ends)
        else:
            _points(axis, mark, panel.x_names or [], points.index(mark), len(points))
    if panel.y_range is not None:
        low, high = panel.y_range
        axis.set_ylim(low, None) if high is None else axis.set_ylim(low - MARGIN, high + MARGIN)
        if panel.y_range == (0, 1):
            axis.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    if panel.x_names is not None:
        plots.name_axis(axis.xaxis, panel.x_names, most=40)
        _turn(axis, panel.x_names)


def _curve(axis: Axes, mark: Curve) -> None:
    colour = LIGHT[mark.colour % len(LIGHT)]
    marker = _MARKERS[mark.colour % len(_MARKERS)] if len(mark.x) <= 40 else None
    style = {"color": colour, "marker": marker, "markersize": 4}
    axis.plot(mark.x, np.array(mark.y, float), label=plots.escape_label(mark.label), **style)
    if mark.low is not None and mark.high is not None:
        low, high = (np.array(edge, float) for edge in (mark.low, mark.high))
        axis.fill_between(mark.x, low, high, color=colour, alpha=0.15, linewidth=0)


def _points(axis: Axes, mark: Points, names: Sequence[str], position: int, of: int) -> None:
    """Rows stand beside each other over their client's name."""
    x = np.array([names.index(name) for name in mark.x]) + (position - (of - 1) / 2) * 0.7 / of
    y = np.array(mark.y, float)
    colour, marker = LIGHT[mark.colour % len(LIGHT)], _MARKERS[mark.colour % len(_MARKERS)]
    axis.plot(x, y, marker, label=plots.escape_label(mark.label), color=colour, markersize=4)
    if mark.low is not None and mark.high is not None:
        axis.vlines(x, np.array(mark.low, float), np.array(mark.high, float), color=colour, linewidth=1)


def _heat(axis: Axes, mark: Heat, ends: tuple[float | None, float | None]) -> None:
    z = np.array(mark.z, float)
    axis.grid(False)
    if mark.is_contour:
        levels = None if None in ends else np.linspace(*ends, 19)
        drawn = axis.contourf(mark.x, mark.y, z, levels=levels, cmap=_MAPS[mark.scale])
    else:
        colours = {"cmap": _MAPS[mark.scale], "vmin": ends[0], "vmax": ends[1]}
        drawn = axis.imshow(z, aspect="auto", interpolation="nearest", **colours)
        plots.name_axis(axis.xaxis, list(map(str, mark.x)), most=40)
        plots.name_axis(axis.yaxis, list(map(str, mark.y)), most=40)
        _turn(axis, list(map(str, mark.x)))
    axis.figure.colorbar(drawn, ax=axis, label=mark.unit)


def _turn(axis: Axes, names: Sequence[str]) -> None:
    """Names that would run into each other are turned."""
    if len(names) <= 40 and sum(map(len, names)) > 50:
        axis.tick_params(axis="x", rotation=60)
        plt.setp(axis.get_xticklabels(), ha="right", rotation_mode="anchor")

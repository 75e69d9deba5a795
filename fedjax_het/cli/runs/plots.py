"""Drawing of figures, images and outlines with Matplotlib, on a white background."""

import contextlib
import functools
import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure as Drawing
from matplotlib.font_manager import FontProperties, findfont, get_font
from matplotlib.ticker import MaxNLocator, PercentFormatter

from fedjax_het.cli.runs import json_files
from fedjax_het.cli.runs.figures import LIGHT, MARGIN, Curve, Figure, Heat, Panel, Points, View, color_range, file_stems

STYLE = {
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.3,
    "font.size": 9,
    "svg.fonttype": "none",
    "svg.hashsalt": "fedjax_het",
}
FORMATS = {"png": {}, "svg": {"Date": None}}
"""The file formats and their metadata: without a date, the same SVG is the same file again."""

TRUE, PREDICTED = "#ffd400", "#00e5ff"
"""Colors of outlines that are visible on histology as well as on gray images."""

_MARKERS = "osD^P*vXh"
_MAPS = {
    "amount": LinearSegmentedColormap.from_list("amount", ["#f4f6f8", LIGHT[0], "#00223c"]),
    "signed": plt.get_cmap("RdBu"),
    "level": plt.get_cmap("viridis"),
}
_LINE_WIDTHS = {"solid": 1.2, "dashed": 1.0}
_MAX_NAMES = 40  # on an axis
_MAX_NAME_LENGTH = 60
_MAX_MARKERS = 40  # on a line


@contextlib.contextmanager
def try_drawing(name: Path | str) -> Iterator[None]:
    """Turn any error of drawing one picture into a printed warning, because no result depends on it."""
    try:
        yield
    except Exception as error:
        plt.close("all")
        reason = (str(error).strip().splitlines() or ["no reason given"])[0]
        print(f"warning: {name} could not be drawn ({type(error).__name__}: {reason}); no result depends on it")


def escape_label(name: str) -> str:
    r"""Escape a name so that Matplotlib draws it literally.

    `$` begins no formula, and a character that the font lacks, such as a line break, is written as an escape (\n).
    """
    text = "".join(char if ord(char) in _glyphs() else char.encode("unicode_escape").decode() for char in name)
    text = text if len(text) <= _MAX_NAME_LENGTH else f"{text[: _MAX_NAME_LENGTH - 1]}…"
    return text.replace("$", r"\$")


@functools.cache
def _glyphs() -> frozenset[int]:
    return frozenset(get_font(findfont(FontProperties())).get_charmap())


# ---- figures ---------------------------------------------------------------------------------------------------------
def write_figure(figure: Figure, folder: Path) -> None:
    """Write each view of a figure as PNG and SVG: `curves_by_rounds.png`. A failure is a printed warning."""
    for stem, view in zip(file_stems(figure), figure.views, strict=True):
        with try_drawing(folder / stem):
            drawing = draw_view(view)
            drawing.draw_without_rendering()
            drawing.set_layout_engine("none")  # the layout need not be computed again for the second format
            for ending in FORMATS:
                json_files.write(folder / f"{stem}.{ending}", functools.partial(save, drawing, format=ending))
            plt.close(drawing)


def save(drawing: Drawing, file: Any, format: str = "png", dpi: int = 150) -> None:
    """Save a drawing to a path or a binary file."""
    with plt.rc_context(STYLE):
        drawing.savefig(file, dpi=dpi, format=format, metadata=FORMATS[format])


def write_drawing(path: Path, draw: Callable[..., Drawing], *arguments: Any) -> None:
    """Draw with these arguments and write the drawing as PNG or SVG. A failure is a printed warning."""
    with try_drawing(path):
        drawing = draw(*arguments)
        json_files.write(path, functools.partial(save, drawing, format=path.suffix[1:]))
        plt.close(drawing)


def draw_view(view: View, across: int = 2, size: tuple[float, float] | None = None) -> Drawing:
    """Draw the panels of a view, wide ones below each other.

    Args:
        view: the view.
        across: the number of panels per row.
        size: the size of a panel in inches; None: 4.6 wide, with a height that fits its names.
    """
    is_wide = any(panel.is_wide for panel in view.panels)
    across = 1 if is_wide else min(across, len(view.panels))
    down = math.ceil(len(view.panels) / across)
    width, height = size or (9 if is_wide else 4.6, max(map(_height, view.panels)))
    size = width * across, height * down
    with plt.rc_context(STYLE):
        drawing, axes = plt.subplots(down, across, figsize=size, squeeze=False, layout="constrained")
        for axis, panel in zip(axes.flat, view.panels, strict=False):
            _draw_panel(axis, panel, color_range(view, panel))
        for axis in axes.flat[len(view.panels) :]:
            axis.set_axis_off()
        lines = {
            line.get_label(): line for axis in axes.flat for line in axis.get_lines() if line.get_label()[0] != "_"
        }
        if len(lines) > 1:
            drawing.legend(lines.values(), lines.keys(), loc="outside lower center", ncols=4, frameon=False)
    return drawing


def _height(panel: Panel) -> float:
    """In inches: a heat map with many named rows is taller."""
    num_names = max((len(mark.y) for mark in panel.marks if isinstance(mark, Heat) and not mark.is_contour), default=0)
    return float(np.clip(1.6 + 0.24 * num_names, 3.4, 12)) if num_names <= _MAX_NAMES else 3.4


def _draw_panel(axis: Axes, panel: Panel, ends: tuple[float | None, float | None]) -> None:
    axis.set(title=escape_label(panel.title), xlabel=panel.x_label, ylabel=escape_label(panel.y_label))
    axis.set(xscale=panel.x_scale, yscale=panel.y_scale)
    points = [mark for mark in panel.marks if isinstance(mark, Points)]
    for mark in panel.marks:
        if isinstance(mark, Curve):
            _draw_curve(axis, mark)
        elif isinstance(mark, Heat):
            _draw_heat(axis, mark, ends)
        else:
            _draw_points(axis, mark, panel.x_names or [], points.index(mark), len(points))
    for position in panel.x_lines:
        axis.axvline(position, color="0.4", linestyle=":", linewidth=0.8, zorder=0)
    if panel.x_label == "round" and not any(isinstance(mark, Heat) for mark in panel.marks):
        axis.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    if panel.y_range is not None:
        low, high = panel.y_range
        axis.set_ylim(low, None) if high is None else axis.set_ylim(low - MARGIN, high + MARGIN)
        if panel.y_range == (0, 1):
            axis.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    if panel.x_names is not None:
        _name_x_axis(axis, panel.x_names)


def _draw_curve(axis: Axes, mark: Curve) -> None:
    color = LIGHT[mark.color % len(LIGHT)]
    marker = _MARKERS[mark.color % len(_MARKERS)] if len(mark.x) <= _MAX_MARKERS else None
    style = {"color": color, "marker": marker, "markersize": 4}
    axis.plot(mark.x, np.array(mark.y, float), label=escape_label(mark.label), **style)
    if mark.low is not None and mark.high is not None:
        low, high = (np.array(edge, float) for edge in (mark.low, mark.high))
        axis.fill_between(mark.x, low, high, color=color, alpha=0.15, linewidth=0)


def _draw_points(axis: Axes, mark: Points, names: Sequence[str], position: int, count: int) -> None:
    """Draw the points of the rows side by side above the name of their client."""
    x = np.array([names.index(name) for name in mark.x]) + (position - (count - 1) / 2) * 0.7 / count
    y = np.array(mark.y, float)
    color, marker = LIGHT[mark.color % len(LIGHT)], _MARKERS[mark.color % len(_MARKERS)]
    axis.plot(x, y, marker, label=escape_label(mark.label), color=color, markersize=4)
    if mark.low is not None and mark.high is not None:
        axis.vlines(x, np.array(mark.low, float), np.array(mark.high, float), color=color, linewidth=1)


def _draw_heat(axis: Axes, mark: Heat, ends: tuple[float | None, float | None]) -> None:
    z = np.array(mark.z, float)
    axis.grid(False)
    if mark.is_contour:
        levels = None if ends[0] is None or ends[1] is None else np.linspace(ends[0], ends[1], 19)
        drawn = axis.contourf(mark.x, mark.y, z, levels=levels, cmap=_MAPS[mark.scale])
    else:
        colors = {"cmap": _MAPS[mark.scale], "vmin": ends[0], "vmax": ends[1]}
        drawn = axis.imshow(z, aspect="auto", interpolation="nearest", **colors)
        _name_x_axis(axis, list(map(str, mark.x)))
        _name_axis(axis.yaxis, list(map(str, mark.y)))
    axis.figure.colorbar(drawn, ax=axis, label=mark.unit)


def _name_axis(axis: Axis, names: Sequence[str]) -> None:
    """Label an axis by names where there is room for them, otherwise by positions."""
    if len(names) <= _MAX_NAMES:
        axis.set_ticks(range(len(names)), list(map(escape_label, names)))
    else:
        axis.set_major_locator(MaxNLocator(integer=True))


def _name_x_axis(axis: Axes, names: Sequence[str]) -> None:
    """Label the x axis, by rotated names if they would otherwise overlap."""
    _name_axis(axis.xaxis, names)
    if len(names) <= _MAX_NAMES and sum(map(len, names)) > 50:
        axis.tick_params(axis="x", rotation=60)
        plt.setp(axis.get_xticklabels(), ha="right", rotation_mode="anchor")


# ---- images ----------------------------------------------------------------------------------------------------------
def draw_grid(
    rows: Sequence[str], columns: Sequence[str], draw_cell: Callable[[Axes, int, int], None], cell_size: float = 1.9
) -> Drawing:
    """Draw a grid of axes with row names at the left and column names above.

    Args:
        rows: the names of the rows.
        columns: the names of the columns.
        draw_cell: (axes, row, column) -> draws one cell, or leaves it empty.
        cell_size: the side of a cell in inches.
    """
    size = (cell_size * len(columns) + 0.3, cell_size * len(rows) + 0.3)
    drawing, axes = plt.subplots(len(rows), len(columns), figsize=size, squeeze=False, layout="constrained")
    for i, row in enumerate(rows):
        for j, column in enumerate(columns):
            axis = axes[i, j]
            axis.set(xticks=[], yticks=[])
            axis.grid(False)
            axis.spines[:].set_visible(False)
            if i == 0:
                axis.set_title(escape_label(column), fontsize=10)
            if j == 0:
                axis.set_ylabel(escape_label(row), fontsize=10)
            draw_cell(axis, i, j)
    return drawing


def show_image(axis: Axes, image: np.ndarray, ends: tuple[float, float] | None = None) -> None:
    """Show an image.

    Args:
        axis: the axes.
        image: [height, width, channel]; of other than one or three channels the first is shown.
        ends: the values shown as black and white; the image's own minimum and maximum unless given.
    """
    values = np.asarray(image, np.float32)
    low, high = ends or (float(values.min()), float(values.max()))
    values = np.clip((values - low) / (high - low or 1.0), 0, 1)
    values = values if values.shape[-1] == 3 else np.repeat(values[..., :1], 3, axis=-1)
    axis.imshow(values, interpolation="nearest")


def draw_outline(axis: Axes, mask: np.ndarray, color: str, style: str = "solid") -> None:
    """Draw the outline of every class but 0 of a mask [height, width]."""
    padded = np.pad(np.asarray(mask), 1)  # so that an outline is closed at the edge of the image
    ticks = [np.arange(-1, size + 1) for size in mask.shape]
    for label in np.unique(padded)[1:]:
        style_options = {"colors": color, "linestyles": style, "linewidths": _LINE_WIDTHS[style]}
        axis.contour(ticks[1], ticks[0], padded == label, levels=[0.5], **style_options)
    axis.set(xlim=(-0.5, mask.shape[1] - 0.5), ylim=(mask.shape[0] - 0.5, -0.5))

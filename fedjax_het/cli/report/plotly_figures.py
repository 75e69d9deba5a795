"""Drawing of figures for the page as Plotly's data and layouts; the script of the page sets colors and theme."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from fedjax_het.cli.runs.figures import MARGIN, Curve, Figure, Heat, Panel, Points, color_range

_SYMBOLS = ("circle", "square", "diamond", "triangle-up", "cross", "star", "triangle-down", "x", "hexagon")
_MAX_NAMES = 60
_MAX_TICKS = 10  # rounds that each get a tick
_MAX_MARKERS = 40  # on a line
Json = dict[str, Any]


def draw_figure(figure: Figure) -> Json:
    """Convert a figure to {"title", "start", "views": [{"name", "panels"}]}."""
    views = [
        {"name": view.name, "panels": [draw_panel(panel, color_range(view, panel)) for panel in view.panels]}
        for view in figure.views
    ]
    return {"title": figure.title, "start": figure.start, "views": views}


def draw_panel(panel: Panel, ends: tuple[float | None, float | None] = (None, None)) -> Json:
    """Convert a panel to {"title", "shape", "rows", "data", "layout"}; the meta of a trace names its row.

    Args:
        panel: the panel.
        ends: the range of the colors of a heat map.
    """
    data: list[Json] = []
    for mark in panel.marks:
        if isinstance(mark, Heat):
            data.append(_draw_heat(mark, panel, ends))
        else:
            data += _draw_curve(mark, panel) if isinstance(mark, Curve) else [_draw_points(mark)]
    shape = "wide" if panel.is_wide else "plain"
    return {"title": panel.title, "shape": shape, "rows": panel.rows, "data": data, "layout": _make_layout(panel)}


def _make_layout(panel: Panel) -> Json:
    heat = next((mark for mark in panel.marks if isinstance(mark, Heat)), None)
    x: Json = {"title": {"text": panel.x_label}, "type": panel.x_scale}
    y: Json = {"title": {"text": panel.y_label}, "type": panel.y_scale}
    if panel.x_label == "round" and _span(panel) <= _MAX_TICKS:
        x["dtick"] = 1
    if heat is not None and not heat.is_contour:
        x |= _name_axis(heat.x)
        y |= _name_axis(heat.y) | {"autorange": "reversed"}
    elif panel.x_names is not None:
        x |= _name_axis(panel.x_names)
    if panel.y_range is not None and panel.y_range[1] is not None:
        y["range"] = [panel.y_range[0] - MARGIN, panel.y_range[1] + MARGIN]
    elif panel.y_range is not None:
        y["rangemode"] = "tozero"
    if panel.y_range == (0, 1):
        y["tickformat"] = ".0%"
    grouping = (
        {"scattermode": "group", "scattergap": 0.3} if any(isinstance(mark, Points) for mark in panel.marks) else {}
    )
    style = {"type": "line", "yref": "paper", "y0": 0, "y1": 1, "line": {"width": 1, "dash": "dot", "color": "#888"}}
    lines = {"shapes": [style | {"x0": x, "x1": x} for x in panel.x_lines]} if panel.x_lines else {}
    return {"xaxis": x, "yaxis": y, "showlegend": False} | grouping | lines


def _span(panel: Panel) -> float:
    x = [x for mark in panel.marks if isinstance(mark, Curve) for x in mark.x]
    return max(x) - min(x) if x else 0


def _name_axis(names: Sequence) -> Json:
    """Configure an axis of names; of many, those that there is room for are shown."""
    order = {"categoryorder": "array", "categoryarray": list(map(str, names))}
    return {"type": "category"} | order | ({"nticks": 20} if len(names) > _MAX_NAMES else {})


def _draw_curve(mark: Curve, panel: Panel) -> list[Json]:
    """Draw the band before the line, so that the line is on top."""
    traces = []
    if mark.low is not None and mark.high is not None:
        edge = _make_trace(mark, "band") | {"mode": "lines", "line": {"width": 0}, "hoverinfo": "skip"}
        traces = [edge | {"y": _round_digits(mark.high)}, edge | {"y": _round_digits(mark.low), "fill": "tonexty"}]
    mode = "lines+markers" if len(mark.x) <= _MAX_MARKERS else "lines"
    form = ".1%" if panel.y_range == (0, 1) else ".4g"
    hover = f"%{{fullData.name}}<br>{panel.x_label} %{{x:.5~g}}: %{{y:{form}}}<extra></extra>"
    return [*traces, _make_trace(mark, "line") | {"mode": mode, "hovertemplate": hover}]


def _draw_points(mark: Points) -> Json:
    trace = _make_trace(mark, "points") | {"mode": "markers", "offsetgroup": str(mark.color), "cliponaxis": False}
    if mark.low is not None and mark.high is not None:
        y, low, high = (np.array(values, float) for values in (mark.y, mark.low, mark.high))
        up, down = (_round_digits(length.tolist()) for length in (high - y, y - low))
        if any(up + down):
            trace["error_y"] = {"type": "data", "symmetric": False, "array": up, "arrayminus": down}
    return trace | {"hovertemplate": "%{fullData.name}<br>%{x}: %{y:.4g}<extra></extra>"}


def _make_trace(mark: Curve | Points, part: str) -> Json:
    symbol = _SYMBOLS[mark.color % len(_SYMBOLS)]
    about = {"row": mark.label, "color": mark.color, "part": part}
    xy = {"x": list(mark.x), "y": _round_digits(mark.y)}
    return {"type": "scatter", "name": mark.label, "meta": about, "marker": {"symbol": symbol, "size": 6}} | xy


def _draw_heat(mark: Heat, panel: Panel, ends: tuple[float | None, float | None]) -> Json:
    hover = f"{panel.y_label} %{{y}}<br>{panel.x_label} %{{x}}<br>{mark.unit} %{{z:.4g}}<extra></extra>"
    drawn = {"z": [_round_digits(row) for row in mark.z], "zmin": ends[0], "zmax": ends[1], "hovertemplate": hover}
    drawn |= {"colorbar": {"title": {"text": mark.unit}}, "meta": {"scale": mark.scale, "part": "map"}}
    if mark.is_contour:
        return drawn | {"type": "contour", "x": mark.x, "y": mark.y, "ncontours": 18, "line": {"width": 0.5}}
    names = {"x": list(map(str, mark.x)), "y": list(map(str, mark.y))}
    return drawn | {"type": "heatmap", "xgap": 1, "ygap": 1} | names


def _round_digits(values: Sequence[float | None]) -> list[float | None]:
    """Round to six digits; NaN, a gap, becomes None."""
    return [None if value is None or value != value else float(f"{value:.6g}") for value in values]

"""Figures for the page: panels as Plotly's data and layout. Colours and the theme are the page's script's."""

from collections.abc import Sequence
from typing import Any

import plotly.graph_objects as go

from .figures import MARGIN, Curve, Figure, Heat, Panel, Points, bounds

_SYMBOLS = ("circle", "square", "diamond", "triangle-up", "cross", "star", "triangle-down", "x", "hexagon")
_MOST_NAMES = 60
_FEW_ROUNDS = 10
_FEW = 40  # points on a line that are marked one by one
Json = dict[str, Any]


def figure(one: Figure) -> Json:
    views = [
        {"name": view.name, "panels": [panel(each, bounds(view, each)) for each in view.panels]} for view in one.views
    ]
    return {"title": one.title, "start": one.start, "views": views}


def panel(one: Panel, ends: tuple[float | None, float | None] = (None, None)) -> Json:
    """{"title", "shape", "rows", "data", "layout"}; ends: of the colours of maps. A trace's meta says whose it is."""
    drawn = go.Figure(layout=_layout(one))
    drawn.layout.template = None
    for mark in one.marks:
        if isinstance(mark, Curve):
            drawn.add_traces(_curve(mark, one))
        elif isinstance(mark, Points):
            drawn.add_trace(_points(mark))
        else:
            drawn.add_trace(_heat(mark, one, ends))
    found = drawn.to_plotly_json()
    shape = "wide" if one.is_wide else "plain"
    return {"title": one.title, "shape": shape, "rows": one.rows, "data": found["data"], "layout": found["layout"]}


def _layout(one: Panel) -> Json:
    heat = next((mark for mark in one.marks if isinstance(mark, Heat)), None)
    x, y = {"title": {"text": one.x_label}}, {"title": {"text": one.y_label}}
    if one.x_label == "round" and _span(one) <= _FEW_ROUNDS:
        x["dtick"] = 1
    if heat is not None and not heat.is_contour:
        x |= _named(heat.x)
        y |= _named(heat.y) | {"autorange": "reversed"}
    elif one.x_names is not None:
        x |= _named(one.x_names)
    if one.y_range is not None and one.y_range[1] is not None:
        y["range"] = [one.y_range[0] - MARGIN, one.y_range[1] + MARGIN]
    elif one.y_range is not None:
        y["rangemode"] = "tozero"
    if one.y_range == (0, 1):
        y["tickformat"] = ".0%"
    beside = {"scattermode": "group", "scattergap": 0.3} if any(isinstance(mark, Points) for mark in one.marks) else {}
    return {"xaxis": x, "yaxis": y, "showlegend": False} | beside


def _span(one: Panel) -> float:
    x = [x for mark in one.marks for x in mark.x]
    return max(x) - min(x) if x else 0


def _named(names: Sequence) -> Json:
    """An axis of names; of many, those that there is room for."""
    order = {"categoryorder": "array", "categoryarray": list(map(str, names))}
    return {"type": "category"} | order | ({"nticks": 20} if len(names) > _MOST_NAMES else {})


def _curve(mark: Curve, one: Panel) -> list[go.Scatter]:
    """A band first, where there is one, so that the line lies over it."""
    whose = {"row": mark.label, "colour": mark.colour}
    found = []
    if mark.low is not None and mark.high is not None:
        edge = {"mode": "lines", "line": {"width": 0}, "hoverinfo": "skip", "meta": whose | {"part": "band"}}
        found.append(go.Scatter(x=mark.x, y=_plain(mark.high), **edge))
        found.append(go.Scatter(x=mark.x, y=_plain(mark.low), fill="tonexty", **edge))
    marker = {"symbol": _SYMBOLS[mark.colour % len(_SYMBOLS)], "size": 6}
    mode = "lines+markers" if len(mark.x) <= _FEW else "lines"
    form = ".1%" if one.y_range == (0, 1) else ".4g"
    hover = f"%{{fullData.name}}<br>{one.x_label} %{{x:.5~g}}: %{{y:{form}}}<extra></extra>"
    whose = whose | {"part": "line"}
    line = {"x": mark.x, "y": _plain(mark.y), "mode": mode, "marker": marker, "hovertemplate": hover}
    return [*found, go.Scatter(name=mark.label, meta=whose, **line)]


def _points(mark: Points) -> go.Scatter:
    error = None
    if mark.low is not None and mark.high is not None:
        up = [high - y for high, y in zip(mark.high, mark.y, strict=True)]
        down = [y - low for low, y in zip(mark.low, mark.y, strict=True)]
        error = (
            {"type": "data", "symmetric": False, "array": _plain(up), "arrayminus": _plain(down)}
            if any(up + down)
            else None
        )
    return go.Scatter(
        name=mark.label,
        x=mark.x,
        y=_plain(mark.y),
        error_y=error,
        mode="markers",
        offsetgroup=str(mark.colour),
        cliponaxis=False,
        marker={"symbol": _SYMBOLS[mark.colour % len(_SYMBOLS)], "size": 7},
        meta={"row": mark.label, "colour": mark.colour, "part": "points"},
        hovertemplate="%{fullData.name}<br>%{x}: %{y:.4g}<extra></extra>",
    )


def _heat(mark: Heat, one: Panel, ends: tuple[float | None, float | None]) -> go.Heatmap | go.Contour:
    hover = f"{one.y_label} %{{y}}<br>{one.x_label} %{{x}}<br>{mark.unit} %{{z:.4g}}<extra></extra>"
    about = {"z": [_plain(row) for row in mark.z], "zmin": ends[0], "zmax": ends[1], "hovertemplate": hover}
    about |= {"colorbar": {"title": {"text": mark.unit}}}
    whose = {"scale": mark.scale, "part": "map"}
    if mark.is_contour:
        return go.Contour(x=mark.x, y=mark.y, meta=whose, ncontours=18, line={"width": 0.5}, **about)
    return go.Heatmap(x=list(map(str, mark.x)), y=list(map(str, mark.y)), meta=whose, xgap=1, ygap=1, **about)


def _plain(values: Sequence[float | None]) -> list[float | None]:
    """Six digits, which no screen shows more of; NaN, a gap, as null."""
    return [None if value is None or value != value else float(f"{value:.6g}") for value in values]

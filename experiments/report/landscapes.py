"""Figures of the loss around the server's model, of the federation and of each client."""

from collections.abc import Sequence

import numpy as np

from ..runs.figures import Figure, Heat, Panel, View
from . import diagnostic_lines
from .rows import Row

_NAME, _MOST_CLIENTS = "landscape", 12


def figures(rows: Sequence[Row], rounds: Sequence[int]) -> list[Figure]:
    """Draw the loss of the federation at each of these rounds, and of single clients at the last of them."""
    record = diagnostic_lines.record(_NAME)
    title, caption = record.title, record.caption + " Of the first seed."
    views = [View(diagnostic_lines.before(r), _panels(rows, r)) for r in rounds if _panels(rows, r)]
    if not views:
        return []
    cohort = " The cohort's, weighted by examples."
    drawn = [Figure(_NAME, title, caption + cohort, views, start=len(views) - 1)]
    names = [name for row in rows for name in _clients(row, rounds[-1])]
    single = [View(name, _panels(rows, rounds[-1], name)) for name in list(dict.fromkeys(names))[:_MOST_CLIENTS]]
    if single:
        more = f" {diagnostic_lines.before(rounds[-1]).capitalize()}; at most {_MOST_CLIENTS} clients of the cohort."
        drawn.append(Figure(f"{_NAME}_clients", f"{title}, per client", caption + more, single))
    return drawn


def _panels(rows: Sequence[Row], round: int, client: str | None = None) -> list[Panel]:
    panels = []
    for row in rows:
        z = _clients(row, round).get(client) if client else _federation(row, round)
        if z is None:
            continue
        for look in diagnostic_lines.at(row, round, _NAME, "steps")[:1]:
            steps = np.round(look[_NAME]["steps"], 6).tolist()
            heat = Heat(steps, steps, z, "level", "loss", is_contour=True)
            panels.append(Panel(row.label, "second direction", "first direction", [heat], rows=(row.label,)))
    return panels


def _federation(row: Row, round: int) -> list[list[float]] | None:
    return next((look[_NAME]["federation"] for look in diagnostic_lines.at(row, round, _NAME, "federation")), None)


def _clients(row: Row, round: int) -> dict[str, list[list[float]]]:
    """Return {client: losses [first direction, second direction]} of the clients that were present."""
    for look in diagnostic_lines.at(row, round, _NAME, "clients"):
        surfaces = [look[_NAME]["clients"][i] for i in diagnostic_lines.present(look)]
        return dict(zip(diagnostic_lines.names(row, look), surfaces, strict=True))
    return {}

"""Diagnostics as figures: what is one number over rounds, what is one a client by clients, the rest as maps."""

from collections.abc import Mapping, Sequence

import numpy as np

from fedjax_het.diagnostics import Quantity

from ..runs.figures import Curve, Figure, Heat, Panel, Points, View
from . import diagnostic_lines, landscapes
from .rows import Row

_MAPS = " Of the first seed; clients of that round's cohort."
_SEEDS = " The mean over seeds, and a band from the lowest to the highest."


def figures(rows: Sequence[Row]) -> list[Figure]:
    """Of all diagnostics that any row has; a row's first run stands for it."""
    looks = [look for row in rows for look in row.first.snapshots]
    shapes = {
        (name, quantity): np.shape(value)
        for look in looks
        for name, part in look.items()
        if isinstance(part, dict) and name != "cohort"
        for quantity, value in part.items()
    }
    found = []
    for name in dict.fromkeys(name for name, _ in shapes):
        rounds = sorted({look["round"] for look in looks if name in look})
        found += _of(name, {quantity: shape for (n, quantity), shape in shapes.items() if n == name}, rows, rounds)
    return found


def _of(name: str, shapes: Mapping[str, tuple[int, ...]], rows: Sequence[Row], rounds: Sequence[int]) -> list[Figure]:
    if name == "landscape":
        return landscapes.figures(rows, diagnostic_lines.thin_out(rounds))
    record, found = diagnostic_lines.record(name), []
    title, caption = record.title, record.caption
    kinds = {quantity: record.quantities.get(quantity, _unknown(quantity, shape)) for quantity, shape in shapes.items()}
    scalars = [((quantity, None), kinds[quantity].title) for quantity, shape in shapes.items() if not shape]
    for quantity, kind in kinds.items():
        scalars += [((quantity, i), said) for i, said in enumerate(kind.parts)]
    if scalars:
        panels = [_over_rounds(name, *of, said, rows) for of, said in scalars]
        found.append(Figure(name, title, caption + _SEEDS, [View("", panels)]))
    vectors = [q for q, shape in shapes.items() if len(shape) == 1 and not kinds[q].parts]
    if vectors:
        views = [
            View(diagnostic_lines.before(r), [_vector(name, q, kinds[q], rows, r) for q in vectors])
            for r in diagnostic_lines.thin_out(rounds)
        ]
        more = " The mean over the seeds in whose cohort a client is, and a bar from the lowest to the highest."
        series = [kinds[q].title for q in vectors if kinds[q].across != "clients"]
        found.append(
            _figure(f"{name}_values", f"{title}: {', '.join(series) or 'client by client'}", caption + more, views)
        )
    for quantity in (quantity for quantity, shape in shapes.items() if len(shape) == 2):
        kind = kinds[quantity]
        views = [
            View(diagnostic_lines.before(r), _maps(name, quantity, kind, rows, r))
            for r in diagnostic_lines.thin_out(rounds)
        ]
        found.append(_figure(f"{name}_{quantity}", f"{title}: {kind.title}", caption + _MAPS, views))
    return found


def _unknown(quantity: str, shape: tuple[int, ...]) -> Quantity:
    """A quantity that its diagnostic says nothing of, by its name and shape."""
    title = quantity.replace("_", " ")
    if len(shape) == 2 and shape[0] != shape[1]:
        return Quantity(title, "index", "index", unit=title)
    return Quantity(title, unit=title)


def _figure(name: str, title: str, caption: str, views: Sequence[View]) -> Figure:
    return Figure(name, title, caption, list(views), start=len(views) - 1)


def _over_rounds(name: str, quantity: str, index: int | None, said: str, rows: Sequence[Row]) -> Panel:
    curves = []
    for row in rows:
        at: dict[int, list[float]] = {}
        for look in row.first.snapshots:
            if (value := look.get(name, {}).get(quantity)) is not None:
                at.setdefault(look["round"] + 1, []).append(value if index is None else value[index])
        if at:
            ends = [[float(end(v)) for v in at.values()] for end in (np.mean, np.min, np.max)]
            band = ends[1:] if max(map(len, at.values())) > 1 else (None, None)
            curves.append(Curve(row.label, row.number, list(at), ends[0], *band))
    return Panel(said, "round", said, curves)


def _vector(name: str, quantity: str, kind: Quantity, rows: Sequence[Row], round: int) -> Panel:
    said = kind.title
    if kind.across != "clients":
        curves = [_series(row, name, quantity, round) for row in rows]
        return Panel(said, kind.across, said, list(filter(None, curves)), (0, None), is_wide=True)
    points = list(filter(None, (_by_client(row, name, quantity, round) for row in rows)))
    names = sorted({client for each in points for client in each.x})
    return Panel(said, "client", said, points, x_names=names, is_wide=True)


def _series(row: Row, name: str, quantity: str, round: int) -> Curve | None:
    values = np.array([look[name][quantity] for look in diagnostic_lines.at(row, round, name, quantity)], float)
    if not len(values):
        return None
    band = [end.tolist() for end in (values.min(axis=0), values.max(axis=0))] if len(values) > 1 else (None, None)
    return Curve(row.label, row.number, list(range(1, values.shape[1] + 1)), values.mean(axis=0).tolist(), *band)


def _by_client(row: Row, name: str, quantity: str, round: int) -> Points | None:
    values: dict[str, list[float]] = {}
    for look in diagnostic_lines.at(row, round, name, quantity):
        present = diagnostic_lines.present(look)
        for client, value in zip(
            diagnostic_lines.names(row, look), np.array(look[name][quantity], float)[present], strict=True
        ):
            values.setdefault(client, []).append(float(value))
    ends = [[float(end(v)) for v in values.values()] for end in (np.mean, np.min, np.max)]
    return Points(row.label, row.number, list(values), *ends) if values else None


def _maps(name: str, quantity: str, kind: Quantity, rows: Sequence[Row], round: int) -> list[Panel]:
    """A panel a row that has a look at this round."""
    found = []
    for row in rows:
        for look in diagnostic_lines.at(row, round, name, quantity)[:1]:
            present, clients = diagnostic_lines.present(look), diagnostic_lines.names(row, look)
            z = np.array(look[name][quantity], float)[present]
            columns: list = list(range(z.shape[1]))
            if kind.across == "clients":
                z, columns = z[:, present], clients
            elif kind.across == "classes" and row.first.partition:
                columns = list(row.first.partition["clients"][0]["classes"])
            heat = Heat(columns, clients, z.tolist(), kind.scale, kind.unit)
            found.append(Panel(row.label, kind.x_label, kind.y_label, [heat], rows=(row.label,)))
    return found

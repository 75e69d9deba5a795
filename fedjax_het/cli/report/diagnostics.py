"""Diagnostics as figures (numbers over rounds, vectors, matrices, landscapes) and as pictures of the last snapshot."""

import io
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Drawing

from fedjax_het.cli.report.rows import Row
from fedjax_het.cli.runs import diagnostics_log, plots
from fedjax_het.cli.runs.figures import Figure, Heat, Panel, View, mean_curve, mean_points
from fedjax_het.cli.runs.run_files import Json
from fedjax_het.diagnostics import DIAGNOSTICS, Diagnostic, ImagePanel, Quantity
from fedjax_het.errors import InputError

Arrays = Mapping[str, np.ndarray]
_MAX_ROWS = 8
_DPI = 110
_OUTLINES = ((plots.TRUE,), (plots.PREDICTED, "dashed"))  # color and style of the outlines of an image
_LANDSCAPE = "landscape"
_MAX_ROUNDS, _MAX_CLIENTS = 6, 12  # that a reader chooses from
_OVER_SEEDS = " Mean over seeds, with a band from minimum to maximum."
_OVER_COHORTS = " Mean over the seeds in whose cohort a client is, with a bar from minimum to maximum."
_MAPS = " First seed; clients of the cohort of the round."


def make_figures(rows: Sequence[Row]) -> list[Figure]:
    """Draw all diagnostics that any row has; the first run of a row represents it."""
    shapes: dict[str, dict[str, tuple[int, ...]]] = {}
    taken: dict[str, set[int]] = {}
    for snapshot in [snapshot for row in rows for snapshot in row.first.snapshots]:
        for name, values in snapshot.items():
            if isinstance(values, dict) and name != "cohort":
                taken.setdefault(name, set()).add(snapshot["round"])
                shapes.setdefault(name, {}).update({quantity: np.shape(value) for quantity, value in values.items()})
    figures = []
    for name, quantity_shapes in shapes.items():
        rounds = _select_rounds(sorted(taken[name]))
        drawn = (
            _make_landscapes(rows, rounds) if name == _LANDSCAPE else _make_figures(name, quantity_shapes, rows, rounds)
        )
        figures += [figure for figure in drawn if figure.views]
    return figures


def _make_figures(
    name: str, shapes: Mapping[str, tuple[int, ...]], rows: Sequence[Row], rounds: Sequence[int]
) -> Iterator[Figure]:
    diagnostic = find_diagnostic(name)
    title, caption = diagnostic.title, diagnostic.caption
    quantities = {key: diagnostic.quantities.get(key) or _default_quantity(key, shape) for key, shape in shapes.items()}
    scalars = [(key, None, quantities[key].title) for key, shape in shapes.items() if not shape]
    scalars += [(key, i, part) for key, quantity in quantities.items() for i, part in enumerate(quantity.parts)]
    if scalars:
        panels = [_draw_over_rounds(name, *scalar, rows) for scalar in scalars]
        yield Figure(name, title, caption + _OVER_SEEDS, [View("", panels)])
    vectors = {key: quantity for key, quantity in quantities.items() if len(shapes[key]) == 1 and not quantity.parts}
    if vectors:
        series = ", ".join(v.title for v in vectors.values() if v.across != "clients") or "client by client"
        views = _view_by_round(
            rounds, lambda round: [_draw_vectors(name, *vector, rows, round) for vector in vectors.items()]
        )
        yield Figure(f"{name}_values", f"{title}: {series}", caption + _OVER_COHORTS, views, len(views) - 1)
    for key, quantity in quantities.items():
        if len(shapes[key]) == 2:
            views = _view_by_round(rounds, partial(_draw_maps, name, key, quantity, rows))
            yield Figure(f"{name}_{key}", f"{title}: {quantity.title}", caption + _MAPS, views, len(views) - 1)


def _default_quantity(key: str, shape: tuple[int, ...]) -> Quantity:
    """Describe a quantity that its diagnostic does not describe by its name and shape."""
    title = key.replace("_", " ")
    if len(shape) == 2 and shape[0] != shape[1]:
        return Quantity(title, "index", "index", unit=title)
    return Quantity(title, unit=title)


def _view_by_round(rounds: Sequence[int], draw: Callable[[int], list[Panel]]) -> list[View]:
    return [View(round_title(round), panels) for round in rounds if (panels := draw(round))]


def _draw_over_rounds(name: str, key: str, index: int | None, title: str, rows: Sequence[Row]) -> Panel:
    curves = []
    for row in rows:
        seeds: dict[int, list[float]] = {}
        for snapshot in row.first.snapshots:
            if (value := snapshot.get(name, {}).get(key)) is not None:
                seeds.setdefault(snapshot["round"] + 1, []).append(value if index is None else value[index])
        if seeds:
            curves.append(mean_curve(row.label, row.number, list(seeds), list(seeds.values())))
    return Panel(title, "round", title, curves)


def _draw_vectors(name: str, key: str, quantity: Quantity, rows: Sequence[Row], round: int) -> Panel:
    """Draw the vectors of each row: as points where entries are clients, else as curves."""
    marks, is_of_clients = [], quantity.across == "clients"
    for row in rows:
        entries: dict[Any, list[float]] = {}
        for snapshot in _find_snapshots(row, round, name, key):
            values, clients = snapshot[name][key], _present_clients(row, snapshot)
            for i, place in clients.items() if is_of_clients else enumerate(range(1, len(values) + 1)):
                entries.setdefault(place, []).append(values[i])
        if entries and is_of_clients:
            marks.append(mean_points(row.label, row.number, entries))
        elif entries:
            marks.append(mean_curve(row.label, row.number, list(entries), list(entries.values())))
    names = sorted({x for mark in marks for x in mark.x}) if is_of_clients else None
    y_range = None if is_of_clients else (0, None)
    x_label = "client" if is_of_clients else quantity.across
    return Panel(quantity.title, x_label, quantity.title, marks, y_range, names, is_wide=True)


def _draw_maps(name: str, key: str, quantity: Quantity, rows: Sequence[Row], round: int) -> list[Panel]:
    """Draw one panel per row that has a snapshot of this round."""
    panels = []
    for row, snapshot in _first_snapshots(rows, round, name, key):
        present = _present_clients(row, snapshot)
        clients, z = list(present.values()), np.array(snapshot[name][key], float)[list(present)]
        columns: list = list(range(z.shape[1]))
        if quantity.across == "clients":
            z, columns = z[:, list(present)], clients
        elif quantity.across == "classes" and row.first.partition:
            columns = list(row.first.partition["clients"][0]["classes"])
        heat = Heat(columns, clients, z.tolist(), quantity.scale, quantity.unit)
        panels.append(Panel(row.label, quantity.x_label, quantity.y_label, [heat], rows=(row.label,)))
    return panels


def _make_landscapes(rows: Sequence[Row], rounds: Sequence[int]) -> Iterator[Figure]:
    """Draw the loss around the server's model: of the federation by rounds, and of single clients in the last one."""
    diagnostic, last = find_diagnostic(_LANDSCAPE), rounds[-1]
    caption = f"{diagnostic.caption} First seed."

    def draw(row: Row, snapshot: Json, losses: list[list[float]]) -> Panel:
        steps = np.round(snapshot[_LANDSCAPE]["steps"], 6).tolist()
        heat = Heat(steps, steps, losses, "level", "loss", is_contour=True)
        return Panel(row.label, "second direction", "first direction", [heat], rows=(row.label,))

    def draw_federation(round: int) -> list[Panel]:
        snapshots = _first_snapshots(rows, round, _LANDSCAPE, "federation")
        return [draw(row, snapshot, snapshot[_LANDSCAPE]["federation"]) for row, snapshot in snapshots]

    views, whole_caption = (
        _view_by_round(rounds, draw_federation),
        f"{caption} Mean over the cohort, weighted by examples.",
    )
    yield Figure(_LANDSCAPE, diagnostic.title, whole_caption, views, len(views) - 1)
    panels: dict[str, list[Panel]] = {}
    for row, snapshot in _first_snapshots(rows, last, _LANDSCAPE, "clients"):
        for position, client in _present_clients(row, snapshot).items():
            panels.setdefault(client, []).append(draw(row, snapshot, snapshot[_LANDSCAPE]["clients"][position]))
    views = [View(*panel) for panel in list(panels.items())[:_MAX_CLIENTS]]
    caption += f" {round_title(last).capitalize()}; at most {_MAX_CLIENTS} clients of the cohort."
    yield Figure(f"{_LANDSCAPE}_clients", f"{diagnostic.title}, per client", caption, views)


# ---- pictures --------------------------------------------------------------------------------------------------------
class Picture(NamedTuple):
    """files: {"png": its bytes, "svg": ...}."""

    name: str  # the stem of its file names
    title: str
    caption: str
    files: dict[str, bytes]


def draw_pictures(rows: Sequence[Row]) -> list[Picture]:
    """Draw the images of each row's first run and seed, in the last snapshot that has any; of the first eight rows.

    Raises:
        InputError: A file of images cannot be read.
    """
    pictures: dict[str, list[Picture]] = {}
    for row in rows[:_MAX_ROWS]:
        with_images = [line for line in row.first.snapshots if "pictures" in line]
        if not with_images:
            continue
        snapshot = max(with_images, key=lambda line: line["round"])
        for name, arrays in _load_images(row, snapshot).items():
            diagnostic = find_diagnostic(name)
            if not diagnostic.panels:
                continue
            caption = f"{diagnostic.caption} {round_title(snapshot['round']).capitalize()}, seed {snapshot['seed']}."
            title = f"{diagnostic.title}: {row.label}"
            with plots.try_drawing(title):
                files = _to_files(_draw_grid(diagnostic.panels, row.first.cohort_names(snapshot), arrays))
                pictures.setdefault(name, []).append(Picture(f"{name}_{row.number}", title, caption, files))
    return [picture for group in pictures.values() for picture in group]


def _load_images(row: Row, snapshot: Json) -> Mapping[str, Arrays]:
    try:
        return diagnostics_log.load_images(row.first.directory, snapshot)
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        raise InputError(
            f"{row.first.directory / snapshot['pictures']}: cannot be read ({error}). Put it back."
        ) from error


def _draw_grid(panels: Sequence[ImagePanel], clients: Sequence[str], arrays: Arrays) -> Drawing:
    """Draw one row per client and, per image, its panels side by side, which share the values of black and white."""
    is_image, ends = arrays["is_image"], None
    if len(panels) > 1:
        raw = np.asarray(arrays[panels[0].image][is_image], np.float32)
        ends = (float(raw.min()), float(raw.max())) if raw.size else (0.0, 1.0)

    def draw(axis: Axes, client: int, column: int) -> None:
        image, number = divmod(column, len(panels))
        if is_image[client, image]:
            plots.show_image(axis, arrays[panels[number].image][client, image], ends)
            for name, style in zip(panels[number].outlines, _OUTLINES, strict=False):
                plots.draw_outline(axis, arrays[name][client, image], *style)

    num_clients, num_images = is_image.shape
    columns = [f"{panel.title} {i + 1}" for i in range(num_images) for panel in panels]
    return plots.draw_grid(clients[:num_clients], columns, draw, cell_size=2.2 if len(panels) == 1 else 1.9)


def _to_files(drawing: Drawing) -> dict[str, bytes]:
    files = {ending: io.BytesIO() for ending in plots.FORMATS}
    for ending, file in files.items():
        plots.save(drawing, file, ending, _DPI)
    plots.plt.close(drawing)
    return {ending: file.getvalue() for ending, file in files.items()}


# ---- snapshots -------------------------------------------------------------------------------------------------------
def round_title(done: int) -> str:
    """Name the round of a snapshot, which is taken before it, after `done` rounds."""
    return f"round {done + 1}"


def find_diagnostic(name: str) -> Diagnostic:
    """Return a diagnostic by its name; for one that this version does not have, a record with its name alone."""
    return DIAGNOSTICS.get(name) or Diagnostic(lambda problem, snapshot: {}, name.capitalize(), "")


def _present_clients(row: Row, snapshot: Json) -> dict[int, str]:
    """Return {position in the cohort: name} of the clients that were present."""
    is_present = snapshot["cohort"]["is_present"]
    return {i: name for i, name in enumerate(row.first.cohort_names(snapshot)) if is_present[i]}


def _select_rounds(rounds: Sequence[int]) -> list[int]:
    """Select the first round, the last, and some between."""
    positions = np.linspace(0, len(rounds) - 1, min(_MAX_ROUNDS, len(rounds))).round().astype(int)
    return [rounds[i] for i in dict.fromkeys(positions.tolist())]


def _find_snapshots(row: Row, round: int, name: str, key: str) -> list[Json]:
    """Find the snapshots of a row in one round that have this quantity, one per seed."""
    return [x for x in row.first.snapshots if x["round"] == round and key in x.get(name, {})]


def _first_snapshots(rows: Sequence[Row], round: int, name: str, key: str) -> Iterator[tuple[Row, Json]]:
    """Yield each row that has this quantity in a round, and the snapshot of its first seed."""
    for row in rows:
        for snapshot in _find_snapshots(row, round, name, key)[:1]:
            yield row, snapshot

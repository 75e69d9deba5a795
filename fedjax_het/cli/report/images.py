"""Images of the last snapshot of each run, drawn once for the page and for files."""

import io
import zipfile
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Drawing

from fedjax_het.cli.report.diagnostics import find_diagnostic, round_title
from fedjax_het.cli.report.rows import Row
from fedjax_het.cli.runs import diagnostics_log, plots
from fedjax_het.cli.runs.run_files import Json
from fedjax_het.diagnostics import ImagePanel
from fedjax_het.errors import InputError

Arrays = Mapping[str, np.ndarray]
_MAX_ROWS = 8
_DPI = 110
_OUTLINES = ((plots.TRUE,), (plots.PREDICTED, "dashed"))  # color and style of the outlines of an image


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
    return [picture for each in pictures.values() for picture in each]


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
    return plots.draw_grid(clients[:num_clients], columns, draw, side=2.2 if len(panels) == 1 else 1.9)


def _to_files(drawing: Drawing) -> dict[str, bytes]:
    files = {ending: io.BytesIO() for ending in plots.FORMATS}
    for ending, file in files.items():
        plots.save(drawing, file, ending, _DPI)
    plots.plt.close(drawing)
    return {ending: file.getvalue() for ending, file in files.items()}

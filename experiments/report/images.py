"""Pictures that diagnostics took in a run's last look: what there is to see, drawn once for the page and for files."""

import io
import zipfile
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Drawing

from fedjax_het.diagnostics import ImagePanel
from fedjax_het.errors import InputError

from ..runs import diagnostics_log, plots
from ..runs.results import HINT
from . import diagnostic_lines
from .rows import Row

Arrays = Mapping[str, np.ndarray]
ENDINGS = ("png", "svg")
_MOST_ROWS = 8


class Picture(NamedTuple):
    """files: {"png": its bytes, "svg": ...}."""

    name: str  # what its files are called
    title: str
    caption: str
    files: dict[str, bytes]


def taken(rows: Sequence[Row]) -> list[Picture]:
    """Of each row's first run and seed, in the last look that has any; of the first eight rows.

    Raises InputError for a file that cannot be read.
    """
    found: dict[str, list[Picture]] = {}
    for row in rows[:_MOST_ROWS]:
        look = next((each for each in _by_round(row) if "pictures" in each), None)
        if look is None:
            continue
        for name, arrays in _arrays(row, look).items():
            record = diagnostic_lines.record(name)
            if not record.panels:
                continue
            when = f" {diagnostic_lines.before(look['round']).capitalize()}, seed {look['seed']}."
            title = f"{record.title}: {row.label}"
            with plots.try_drawing(title):
                files = _files(_drawn(record.panels, diagnostic_lines.cohort(row, look), arrays))
                found.setdefault(name, []).append(Picture(f"{name}_{row.number}", title, record.caption + when, files))
    return [picture for each in found.values() for picture in each]


def _by_round(row: Row) -> list[diagnostic_lines.DiagnosticLine]:
    """The last look first, its seeds in their order."""
    return sorted(row.first.snapshots, key=lambda look: -look["round"])


def _arrays(row: Row, look: diagnostic_lines.DiagnosticLine) -> Mapping[str, Arrays]:
    try:
        return diagnostics_log.load_images(row.first.directory, look)
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        raise InputError(f"{row.first.directory / look['pictures']}: cannot be read ({error}). {HINT}") from error


def _drawn(panels: Sequence[ImagePanel], clients: Sequence[str], arrays: Arrays) -> Drawing:
    """A row per client, and for each image the panels side by side; with several, black and white are the same."""
    is_image, ends = arrays["is_image"], None
    if len(panels) > 1:
        raw = np.asarray(arrays[panels[0].image][is_image], np.float32)
        ends = (float(raw.min()), float(raw.max())) if raw.size else (0.0, 1.0)

    def draw(axis: Axes, client: int, column: int) -> None:
        image, number = divmod(column, len(panels))
        if is_image[client, image]:
            plots.show_image(axis, arrays[panels[number].image][client, image], *(() if ends is None else (ends,)))
            for name, style in zip(panels[number].outlines, _OUTLINES, strict=False):
                plots.draw_outline(axis, arrays[name][client, image], *style)

    num_clients, num_images = is_image.shape
    columns = [f"{panel.title} {i + 1}" for i in range(num_images) for panel in panels]
    return plots.draw_grid(clients[:num_clients], columns, draw, **({"side": 2.2} if len(panels) == 1 else {}))


_OUTLINES = ((plots.TRUE,), (plots.PREDICTED, "dashed"))


def _files(drawn: Drawing) -> dict[str, bytes]:
    found = {}
    with plt.rc_context(plots.STYLE | {"svg.fonttype": "none", "svg.hashsalt": "report"}):
        for ending in ENDINGS:
            file = io.BytesIO()
            drawn.savefig(file, dpi=110, format=ending, metadata={"Date": None} if ending == "svg" else None)
            found[ending] = file.getvalue()
        plt.close(drawn)
    return found

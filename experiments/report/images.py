"""Pictures that diagnostics took in a run's last look: what there is to see, drawn once for the page and for files."""

import io
import zipfile
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Drawing

from fedjax_het.errors import InputError

from ..runs import diagnostics_log, plots
from ..runs.results import HINT
from . import captions, diagnostic_lines
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
    found: dict[str, list[Picture]] = {name: [] for name in _DRAWN}
    for row in rows[:_MOST_ROWS]:
        look = next((each for each in _by_round(row) if "pictures" in each), None)
        for name, arrays in _arrays(row, look).items() if look else ():
            when = f" {diagnostic_lines.before(look['round']).capitalize()}, seed {look['seed']}."
            title = f"{captions.title(name)}: {row.label}"
            with plots.try_drawing(title):
                files = _files(_DRAWN[name](diagnostic_lines.cohort(row, look), arrays))
                found[name].append(Picture(f"{name}_{row.number}", title, captions.caption(name) + when, files))
    return [picture for each in found.values() for picture in each]


def _by_round(row: Row) -> list[diagnostic_lines.DiagnosticLine]:
    """The last look first, its seeds in their order."""
    return sorted(row.first.snapshots, key=lambda look: -look["round"])


def _arrays(row: Row, look: diagnostic_lines.DiagnosticLine) -> dict[str, Arrays]:
    try:
        return diagnostics_log.load_images(row.first.directory, look)
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        raise InputError(f"{row.first.directory / look['pictures']}: cannot be read ({error}). {HINT}") from error


def _contours(clients: Sequence[str], arrays: Arrays) -> Drawing:
    """A row a client, a column an image."""

    def draw(axis: Axes, client: int, image: int) -> None:
        if arrays["is_image"][client, image]:
            plots.show_image(axis, arrays["images"][client, image])
            plots.draw_outline(axis, arrays["true"][client, image], plots.TRUE)
            plots.draw_outline(axis, arrays["predicted"][client, image], plots.PREDICTED, "dashed")

    num_clients, num_images = arrays["is_image"].shape
    return plots.draw_grid(clients[:num_clients], [f"image {i + 1}" for i in range(num_images)], draw, side=2.2)


def _normalisation(clients: Sequence[str], arrays: Arrays) -> Drawing:
    """A row a client, each image beside what is made of it; black and white are the same in all."""
    kinds, is_image = ("images", "normalised"), arrays["is_image"]
    raw = np.asarray(arrays["images"][is_image], np.float32)
    ends = (float(raw.min()), float(raw.max())) if raw.size else (0.0, 1.0)

    def draw(axis: Axes, client: int, column: int) -> None:
        image, kind = divmod(column, 2)
        if is_image[client, image]:
            plots.show_image(axis, arrays[kinds[kind]][client, image], ends)

    num_clients, num_images = is_image.shape
    columns = [f"{kind} {i + 1}" for i in range(num_images) for kind in ("image", "normalised")]
    return plots.draw_grid(clients[:num_clients], columns, draw)


_DRAWN: dict[str, Callable[[Sequence[str], Arrays], Drawing]] = {
    "contours": _contours,
    "normalisation": _normalisation,
}


def _files(drawn: Drawing) -> dict[str, bytes]:
    found = {}
    with plt.rc_context(plots.STYLE | {"svg.fonttype": "none", "svg.hashsalt": "report"}):
        for ending in ENDINGS:
            file = io.BytesIO()
            drawn.savefig(file, dpi=110, format=ending, metadata={"Date": None} if ending == "svg" else None)
            found[ending] = file.getvalue()
        plt.close(drawn)
    return found

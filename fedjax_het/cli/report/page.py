"""The HTML page, which loads nothing from a network, the files beside it, and the watching of runs."""

import base64
import contextlib
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from plotly.offline import get_plotlyjs

from fedjax_het.cli.report import plotly_figures
from fedjax_het.cli.report.contents import Contents, make_contents
from fedjax_het.cli.runs import json_files, plots
from fedjax_het.cli.runs.figures import DARK, LIGHT, Figure, file_stems
from fedjax_het.cli.runs.results import find_runs, modification_times, read_runs
from fedjax_het.cli.runs.tables import WRITERS, make_cells
from fedjax_het.errors import InputError

_FOLDER = Path(__file__).parent
_FORMATS = {".md": "Markdown", ".tex": "LaTeX", ".csv": "CSV"}
REFRESH = 10
"""Seconds after which a watched page reloads itself."""
POLL = 3.0
"""Seconds between two checks of the files of watched runs."""


def render_page(contents: Contents, files_folder: str, is_watched: bool) -> str:
    """Render the whole page.

    Args:
        contents: its tables, figures and pictures.
        files_folder: the folder beside the page that holds them as files.
        is_watched: whether the page reloads itself.
    """
    environment = Environment(loader=FileSystemLoader(_FOLDER), autoescape=True, undefined=StrictUndefined)
    environment.trim_blocks = environment.lstrip_blocks = True
    figures = {figure.name: plotly_figures.draw_figure(figure) for figure in contents.figures}
    return environment.get_template("template.html.j2").render(
        contents=contents,
        colors={row.label: i for i, row in enumerate(contents.rows)},
        formats=_FORMATS,
        make_cells=make_cells,
        stems=file_stems,
        embedded=lambda picture: "data:image/png;base64," + base64.b64encode(picture.files["png"]).decode(),
        files=files_folder,
        refresh=REFRESH if is_watched else None,
        made=time.strftime("%Y-%m-%d %H:%M"),
        style=Markup((_FOLDER / "style.css").read_text()),
        script=Markup((_FOLDER / "script.js").read_text()),
        plotly=Markup(get_plotlyjs()),
        data=_embed_json({"figures": figures, "light": LIGHT, "dark": DARK}),
        texts=_embed_json(
            {table.name: {form: WRITERS[end](table) for end, form in _FORMATS.items()} for table in contents.tables}
        ),
    )


def _embed_json(value: Any) -> Markup:
    """Write JSON that cannot end the script element around it."""
    return Markup(json_files.to_json(value).replace("<", "\\u003c"))


class Report:
    """One page and its files. Figures that have not changed since the last `write` are not drawn again."""

    def __init__(self, out: Path):
        self.out, self.folder = out, out.with_name(f"{out.stem}_files")
        self._drawn: dict[str, Figure] = {}

    def write(self, contents: Contents, is_watched: bool = False) -> None:
        """Write all files atomically, the page first."""
        self.folder.mkdir(parents=True, exist_ok=True)
        json_files.write(self.out, render_page(contents, self.folder.name, is_watched))
        for table in contents.tables:
            for ending, form in WRITERS.items():
                json_files.write(self.folder / f"{table.name}{ending}", form(table))
        for picture in contents.pictures:
            for ending, content in picture.files.items():
                json_files.write(self.folder / f"{picture.name}.{ending}", content)
        for figure in contents.figures:
            if self._drawn.get(figure.name) != figure:
                plots.write_figure(figure, self.folder)
                self._drawn[figure.name] = figure


def watch(report: Report, paths: Sequence[Path], *options: Any) -> None:
    """Write the report whenever a run's files change until interrupted, and then once more without reloading.

    Files that cannot be read later cause a message, and the page stays as it is until they can be read.

    Args:
        report: the report.
        paths: the directories of the runs.
        *options: see `contents.make_contents`.

    Raises:
        InputError: The first page cannot be written.
    """

    def write(is_watched: bool) -> None:
        report.write(make_contents(*read_runs(paths), *options), is_watched)

    def write_again(is_watched: bool) -> None:
        try:
            write(is_watched)
            print(f"{time.strftime('%H:%M:%S')} {report.out}", flush=True)
        except (InputError, OSError) as error:
            print(f"error: {error}", file=sys.stderr, flush=True)

    before = _stamps(paths)  # before reading: changes while figures are drawn are noticed the next time
    write(is_watched=True)
    print(f"{report.out} follows its runs; interrupt to stop", flush=True)
    try:
        while True:
            time.sleep(POLL)
            if (now := _stamps(paths)) != before:
                before = now
                write_again(is_watched=True)
    except KeyboardInterrupt:
        write_again(is_watched=False)


def _stamps(paths: Sequence[Path]) -> list[list[int]]:
    """Return the times of change of the files of all runs; none for a path that cannot be read now."""
    stamps = []
    for path in paths:
        with contextlib.suppress(InputError, OSError):
            stamps += [modification_times(directory) for directory in find_runs(path)[0]]
    return stamps

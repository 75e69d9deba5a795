"""The page: tables and figures of runs in one HTML file that asks nothing of any network."""

import base64
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from plotly.offline import get_plotlyjs

from ..runs import json_files
from ..runs.tables import WRITERS, Table, make_cells
from . import plotly_figures
from .contents import Contents
from .figures import DARK, LIGHT, stems

_HERE = Path(__file__).parent
_FORMS = {".md": "Markdown", ".tex": "LaTeX", ".csv": "CSV"}
REFRESH = 10
"""Seconds after which a watched page loads itself again."""


class Shown(NamedTuple):
    """A table as the template takes it. body: (label, the row's number or None, cells)."""

    table: Table
    body: list[tuple[str, int | None, list]]
    texts: dict[str, str]
    has_best: bool
    is_text: list[bool]  # a column without numbers


def html(contents: Contents, files_folder: str, is_watched: bool) -> str:
    """The whole page. files_folder: where, beside it, tables and figures lie as files of their own."""
    colours = {row.label: i for i, row in enumerate(contents.rows)}
    environment = Environment(loader=FileSystemLoader(_HERE), autoescape=True, undefined=StrictUndefined)
    environment.trim_blocks = environment.lstrip_blocks = True
    return environment.get_template("template.html.j2").render(
        contents=contents,
        colours=colours,
        shown=lambda table: _shown(table, colours),
        stems=stems,
        embedded=lambda picture: "data:image/png;base64," + base64.b64encode(picture.files["png"]).decode(),
        files=files_folder,
        refresh=REFRESH if is_watched else None,
        made=time.strftime("%Y-%m-%d %H:%M"),
        style=Markup((_HERE / "style.css").read_text()),
        script=Markup((_HERE / "script.js").read_text()),
        plotly=Markup(get_plotlyjs()),
        data=_in_script(
            {
                "figures": {each.name: plotly_figures.figure(each) for each in contents.figures},
                "light": LIGHT,
                "dark": DARK,
            }
        ),
        texts=_in_script({table.name: _texts(table) for table in contents.tables}),
    )


def _shown(table: Table, colours: Mapping[str, int]) -> Shown:
    body = [(label, colours.get(label), row) for (label, _), row in zip(table.rows, make_cells(table), strict=True)]
    has_best = any(cell.rank is not None for _, _, row in body for cell in row)
    is_text = [all(row[i].key is None for _, _, row in body) for i in range(len(table.columns))]
    return Shown(table, body, _FORMS, has_best, is_text)


def _texts(table: Table) -> dict[str, str]:
    return {form: WRITERS[ending](table) for ending, form in _FORMS.items()}


def _in_script(value: Any) -> Markup:
    """JSON that cannot end the script element it stands in."""
    return Markup(json_files.to_json(value).replace("<", "\\u003c"))

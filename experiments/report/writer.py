"""The page and the folder beside it, written whole or not at all."""

from pathlib import Path

from ..runs import json_files
from ..runs.tables import WRITERS
from . import matplotlib_figures, page
from .contents import Contents
from .figures import Figure


class Report:
    """One page and its files. Figures that have not changed since the last `write` are not drawn again."""

    def __init__(self, out: Path):
        self.out, self.folder = out, out.with_name(f"{out.stem}_files")
        self._printed: dict[str, Figure] = {}

    def write(self, contents: Contents, is_watched: bool = False) -> None:
        """The page comes first: it is what one waits for."""
        self.folder.mkdir(parents=True, exist_ok=True)
        json_files.write(self.out, page.html(contents, self.folder.name, is_watched))
        for table in contents.tables:
            for ending, form in WRITERS.items():
                json_files.write(self.folder / f"{table.name}{ending}", form(table))
        for picture in contents.pictures:
            for ending, content in picture.files.items():
                json_files.write(self.folder / f"{picture.name}.{ending}", content)
        for figure in contents.figures:
            if self._printed.get(figure.name) != figure:
                matplotlib_figures.write(figure, self.folder)
                self._printed[figure.name] = figure

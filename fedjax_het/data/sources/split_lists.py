"""Split lists: a text file with a line "<file> <label>" for every example."""

from pathlib import Path
from typing import NamedTuple

from fedjax_het.data.sources.reading import reading
from fedjax_het.data.sources.tables import check_rows
from fedjax_het.errors import InputError


class Row(NamedTuple):
    line: int  # from 1
    path: str  # as the list writes it: <domain>/<class>/<file>
    label: int


def read(listed: Path, root: Path) -> list[Row]:
    """The rows of a list; file names may hold spaces, blank lines are passed over.

    Raises InputError for a line that cannot be read, and for one whose file is not below `root`.
    """
    with reading(listed):
        lines = listed.read_text().splitlines()
    rows = [_row(listed, i, text) for i, text in enumerate(lines, start=1) if text.strip()]
    check_rows(listed, ((row.line, str(root / row.path)) for row in rows))
    return rows


def _row(listed: Path, line: int, text: str) -> Row:
    path, _, label = text.strip().rpartition(" ")
    if not path or not label.isdigit():
        raise InputError(f"{listed}, line {line}: '{text.strip()}' is not '<file> <label>'. Mend the line.")
    return Row(line, path.strip(), int(label))

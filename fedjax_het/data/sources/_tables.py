"""Split lists: a text file with a line "<file> <label>" for every example."""

import csv
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from fedjax_het.data.sources._io_errors import reporting_read_errors
from fedjax_het.errors import InputError, nearest


class Row(NamedTuple):
    line: int  # from 1
    path: str  # as the list writes it: <domain>/<class>/<file>
    label: int


def read_split_list(listed: Path, root: Path) -> list[Row]:
    """The rows of a list; file names may hold spaces, blank lines are passed over.

    Raises InputError for a line that cannot be read, and for one whose file is not below `root`.
    """
    with reporting_read_errors(listed):
        lines = listed.read_text().splitlines()
    rows = [_row(listed, i, text) for i, text in enumerate(lines, start=1) if text.strip()]
    check_rows(listed, ((row.line, str(root / row.path)) for row in rows))
    return rows


def _row(listed: Path, line: int, text: str) -> Row:
    path, _, label = text.strip().rpartition(" ")
    if not path or not label.isdigit():
        raise InputError(f"{listed}, line {line}: '{text.strip()}' is not '<file> <label>'. Mend the line.")
    return Row(line, path.strip(), int(label))


def read_rows(path: Path) -> Iterator[tuple[int, list[str]]]:
    """(line, cells) of every line that is not blank. Raises InputError for a file that is missing or no text."""
    with reporting_read_errors(path), path.open(newline="", encoding="utf-8-sig") as file:
        reader = csv.reader(file)
        yield from ((reader.line_num, [cell.strip() for cell in cells]) for cells in reader if any(cells))


def read_records(path: Path, columns: Sequence[str]) -> Iterator[tuple[int, list[str]]]:
    """(line, the cells of these columns) of a table with a header.

    Raises InputError for a column that is missing, and for a line that is cut short.
    """
    lines = read_rows(path)
    header = next(lines, (0, []))[1]
    for column in columns:
        if column not in header:
            raise InputError(f"{path} has no column '{column}'. {nearest(column, header)}")
    places = [header.index(column) for column in columns]
    for line, cells in lines:
        if len(cells) <= max(places):
            raise InputError(
                f"{path}, line {line}: {len(cells)} cells for {len(header)} columns. Fetch the file again."
            )
        yield line, [cells[place] for place in places]


def parse_count(path: Path, line: int, what: str, text: str) -> int:
    """A cell that holds a whole number of 0 or more, be it written 1 or 1.0."""
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if number < 0 or number != int(number):
        raise InputError(f"{path}, line {line}: {what} is '{text}', not a whole number from 0. Mend the line.")
    return int(number)


def check_rows(listed: Path, paths: Iterable[tuple[int, str]]) -> None:
    """(line, path) of every row of a list: raise InputError for the first whose file is not there.

    Folders are read once each, which is much quicker than asking for every file.
    """
    contents: dict[str, set[str]] = {}
    for line, path in paths:
        folder, file = os.path.split(path)
        if folder not in contents:
            contents[folder] = set(os.listdir(folder)) if os.path.isdir(folder) else set()
        if file not in contents[folder]:
            raise InputError(f"{listed}, line {line}: {path} is not there. Restore the file, or take out the line.")

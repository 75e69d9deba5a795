"""Reading of CSV files with columns of numbers."""

import csv
import io
import math
import zlib
from collections.abc import Mapping
from pathlib import Path

from fedjax_het._internal.regular_files import read_text
from fedjax_het.errors import InputError


def read_number_table(path: str | Path, columns: Mapping[str, type], name: str) -> list[tuple]:
    """Read a CSV file whose first line names its columns.

    Args:
        path: The file.
        columns: The columns to read, and the type of their numbers, int or float; others are ignored.
        name: The argument that the file was given for, which messages begin with.

    Returns:
        One tuple per line; the i-th is in line i + 2 of the file.

    Raises:
        InputError: The file cannot be read, has no such column or no line, or a cell is not a finite number.
    """
    try:
        reader = csv.DictReader(io.StringIO(read_text(path), newline=""))
        lines, header = list(reader), reader.fieldnames or []
    except (OSError, EOFError, zlib.error, UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{name}: cannot read '{path}': {error}.") from error
    if missing := [column for column in columns if column not in header]:
        raise InputError(f"{name}: '{path}' has no column {missing[0]}. Its first line must be {','.join(columns)}.")
    if not lines:
        raise InputError(f"{name}: '{path}' has no line below {','.join(columns)}.")
    return [_parse_line(line, columns, f"{name}: '{path}', line {number}") for number, line in enumerate(lines, 2)]


def _parse_line(line: Mapping[str, str], columns: Mapping[str, type], place: str) -> tuple:
    cells = []
    for column, kind in columns.items():
        try:
            cells.append(kind(line[column]))
        except (TypeError, ValueError):
            expected = "a whole number" if kind is int else "a number"
            raise InputError(f"{place}: {column} must be {expected}, and is {line[column]!r}.") from None
        if not math.isfinite(cells[-1]):
            raise InputError(f"{place}: {column} must be finite, and is {line[column]}.")
    return tuple(cells)

"""Reading of CSV files with columns of numbers."""

import csv
import io
import math
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedjax_het._internal.regular_files import read_text
from fedjax_het.errors import InputError
from fedjax_het.validation import CountOrZero, check_constraints


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


def read_client_table(path: str, columns: Mapping[str, Any], name: str) -> list[tuple[float, ...]]:
    """Read a CSV file with the column client and further columns of numbers, one line for each client.

    Args:
        path: The file; its clients are numbered from 0, in any order.
        columns: The columns besides client, and the annotations of their numbers, see `validation.constraints`.
        name: As in `read_number_table`.

    Returns:
        The numbers of each client.

    Raises:
        InputError: The file cannot be read, a number is out of range, or a client has no line or several.
    """
    kinds = {"client": CountOrZero} | dict(columns)
    lines = read_number_table(path, {"client": int} | dict.fromkeys(columns, float), name)
    for number, line in enumerate(lines, 2):
        check_constraints(kinds, dict(zip(kinds, line, strict=True)), f"{name}: '{path}', line {number}: ")
    lines.sort()
    if (clients := [line[0] for line in lines]) != list(range(len(lines))):
        wrong = next(i for i, client in enumerate(clients) if client != i)
        raise InputError(f"{name}: '{path}': expected exactly one line for each client, including client {wrong}.")
    return [line[1:] for line in lines]


def read_client_numbers(
    option: str, column: str, kind: Any, given: Sequence[float] | str
) -> tuple[list[float], Callable[[int], None]]:
    """Read one number per client: client i has the number i modulo their count.

    Args:
        option: The name of the option, in messages.
        column: The column of the file.
        kind: The annotation of a number.
        given: The numbers; or the path of a CSV file with the columns client and `column`, one line per client.

    Returns:
        (The numbers, a function that raises InputError if a file lists fewer than this many clients.)

    Raises:
        InputError: The file is malformed, or there is no number.
    """
    is_file = isinstance(given, str)
    own = [number for (number,) in read_client_table(given, {column: kind}, option)] if is_file else list(given)
    if not own:
        raise InputError(f"{option}: the list is empty. Give at least one {column}.")

    def check(num_clients: int) -> None:
        if is_file and num_clients > len(own):
            raise InputError(
                f"{option}: '{given}' has the {option} of {len(own)} clients, but there are {num_clients}. Add a line "
                "for each client, or use fewer clients."
            )

    return own, check


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

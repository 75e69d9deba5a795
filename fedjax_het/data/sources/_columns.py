"""Columns of tables: those of files, their roles by name, and columns of labels."""

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from fedjax_het.data.encoding import list_some, parse_column, read_names, sort_naturally
from fedjax_het.data.sources._image_listing import read_table
from fedjax_het.data.sources._npz import ROLES
from fedjax_het.errors import InputError, nearest
from fedjax_het.labels import PADDING

TableKind = Literal["classes", "ranks", "tags", "numbers"]
_MAX_CLASSES = 20  # with numbers that are not whole


def read_columns(file: Path, separator: str = ",", header: Sequence[str] = ()) -> dict[str, list[str]]:
    """{column: cells} of a file whose first row, or `header`, has the names of the columns."""
    header, rows = read_table(file, separator, header)
    if len(header) == 1 and (other := next((mark for mark in ";\t" if mark in header[0]), None)):
        raise InputError(f"{file}: its cells are separated by {other!r}. Save it with commas.")
    if repeated := {key for key in header if key and header.count(key) > 1}:
        raise InputError(f"{file} has the column '{min(repeated)}' twice. Rename one of them.")
    return {key: [cells[i] for _, cells in rows] for i, key in enumerate(header) if key}


def split_names(names: Sequence[str] | str | None) -> list[str]:
    """Names of columns, given as such or comma-separated; [] for None."""
    return [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names or ())


def find_roles(
    name: str, columns: Collection[str], given: Mapping[str, str | None], taken: Sequence[str]
) -> tuple[dict[str, str | None], list[str]]:
    """({role: column} with the columns that are not given found by their usual names, otherwise None; notes).

    Args:
        name: The name of the data set.
        columns: The names of all columns.
        given: {role of `ROLES`: its column, or None}.
        taken: Columns that have another role.
    """
    for key in [*filter(None, given.values()), *taken]:
        if key not in columns:
            raise InputError(f"{name} has no column '{key}'. {nearest(key, columns)}")
    chosen, notes = dict(given), []
    free = [key for key in columns if key not in (*given.values(), *taken)]
    for role, key in given.items():
        found = [column for column in free if key is None and ROLES.get(column.lower()) == role]
        if len(found) > 1:
            raise InputError(
                f"{name}: the columns {', '.join(found)} may all be the {role}. Choose one: "
                f"{role.removesuffix('s')}='{found[0]}'."
            )
        for column in found:
            chosen[role] = column
            notes += [f"{role} from column '{column}'"] * (role[:-1] not in column)
    return chosen, notes


def read_classes(name: str, key: str, values: Sequence[Any], notes: list[str]) -> tuple[list[str], list[str]]:
    """(labels, class names in natural order), with a note on numbers that are not those of the classes."""
    labels = read_names(f"{name}: column '{key}'", values)
    class_names = sort_naturally(set(labels))
    if all(map(str.isdecimal, class_names)) and class_names != [str(i) for i in range(len(class_names))]:
        notes.append(f"labels {list_some(class_names)} are classes 0 to {len(class_names) - 1}")
    return labels, class_names


def read_targets(
    name: str, keys: Sequence[str], columns: Mapping[str, Sequence[Any]], kind: TableKind | None, notes: list[str]
) -> tuple[Any, Sequence[str], TableKind]:
    """(labels, their names, their kind) of one column of classes, ranks or numbers, or of several of tags or numbers.

    Args:
        name: The name of the data set.
        keys: The columns of labels.
        columns: The values of all columns.
        kind: The kind of labels; None: classes in one column, unless it has many different numbers that are not whole;
            several columns hold tags if all values are 0, 1, -1 or missing, otherwise numbers.
        notes: Notes, to which this one is added.
    """
    if kind in (None, "classes", "ranks") and len(keys) == 1:
        values = columns[keys[0]]
        if kind is not None or not _are_measured(values):
            labels, class_names = read_classes(name, keys[0], values, notes)
            if kind == "ranks":
                notes.append(f"ranks from the lowest: {list_some(class_names)}")
            return labels, class_names, kind or "classes"
        notes.append(f"labels are numbers, because column '{keys[0]}' has many that are not whole")
        kind = "numbers"
    if kind in ("classes", "ranks"):
        raise InputError(f"{name}: {kind} need one column, not {', '.join(keys)}. Choose one, label='{keys[0]}'.")
    values = np.stack([_read_numbers(name, key, columns[key]) for key in keys], axis=1)
    if kind is None:
        kind = "tags" if (np.isnan(values) | np.isin(values, (PADDING, 0, 1))).all() else "numbers"
        notes.append(f"labels are {kind}: {list_some(keys)}")
    if kind == "numbers" and (is_missing := np.isnan(values)).any():
        row, column = np.argwhere(is_missing)[0]
        raise InputError(f"{name}: column '{keys[column]}' has no number in row {row + 1}. Fill it, or delete the row.")
    return values, list(keys), kind


def _are_measured(values: Sequence[Any]) -> bool:
    """Whether a column has numbers that are not whole, and too many different ones for classes."""
    numbers = parse_column(values)
    if numbers.dtype.kind != "f" or np.isnan(numbers).any():
        return False
    return bool((numbers != np.round(numbers)).any() and len(np.unique(numbers)) > _MAX_CLASSES)


def _read_numbers(name: str, key: str, values: Sequence[Any]) -> np.ndarray:
    """[n] float64, NaN for missing values."""
    numbers = parse_column(values)
    if numbers.dtype.kind != "f":
        raise InputError(f"{name}: column '{key}' holds texts, not numbers. Name other columns as labels.")
    return numbers

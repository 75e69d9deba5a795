"""Columns of tables: those of files, their roles by name, and columns of labels."""

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedjax_het.data.encoding import list_some, read_names, sort_naturally
from fedjax_het.data.sources._image_listing import read_table
from fedjax_het.data.sources._npz import ROLES
from fedjax_het.errors import InputError, nearest


def read_columns(file: Path, separator: str = ",", header: Sequence[str] = ()) -> dict[str, list[str]]:
    """{column: cells} of a file whose first row, or `header`, has the names of the columns."""
    header, rows = read_table(file, separator, header)
    if len(header) == 1 and (other := next((mark for mark in ";\t" if mark in header[0]), None)):
        raise InputError(f"{file}: its cells are separated by {other!r}. Save it with commas.")
    if repeated := {key for key in header if key and header.count(key) > 1}:
        raise InputError(f"{file} has the column '{min(repeated)}' twice. Rename one of them.")
    return {key: [cells[i] for _, cells in rows] for i, key in enumerate(header) if key}


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

"""Reading and checking of the files that a run leaves in its directory."""

import csv
import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedjax_het._internal.regular_files import read_regular
from fedjax_het.errors import InputError

Json = dict[str, Any]
METRICS, DIAGNOSTICS, PER_CLIENT = "metrics.jsonl", "diagnostics.jsonl", "per_client.csv"
SELECTED = "selected.jsonl"  # the clients' rows in the round that is best on validation examples, for each seed
RESOLVED, _OLD_RESOLVED = "resolved.json", "choices.json"  # the values that "auto" was resolved to
KEYS = {
    "config.json": ("algorithm", "model", "data", "rounds", "seed", "num_seeds"),
    RESOLVED: ("layout", "devices"),
    _OLD_RESOLVED: ("layout", "devices"),
    "partition.json": ("fingerprint", "clients"),
    "summary.json": ("final", "facts", "versions", "rounds"),
    METRICS: ("round", "seed", "seconds"),
    DIAGNOSTICS: ("round", "seed", "cohort"),
    SELECTED: ("round", "seed", "clients"),
}
"""The keys that every table of a file has."""

_COLUMNS = ("seed", "client", "is_newcomer")
_TABLES = ("algorithm", "model", "data", "final", "facts", "versions")
_PARTS = {"clients": ("client", "is_newcomer", "train", "valid", "test", "classes")}
_KINDS = {dict: "a table", list: "a list", str: "text", bool: "true or false", int: "a number", float: "a number"}


class DamagedFileError(InputError):
    """A file that is not what a run writes.

    Attributes:
        path: The file.
        reason: What is wrong with it.
        line: The number of the line that is wrong, from 1; None where it is the whole file.
        good: The records of the lines before that one.
        is_replaceable: Whether a new file could take its place: not if a folder is there, or reading is not permitted.
    """

    def __init__(
        self, path: Path, reason: str, line: int | None = None, good: Sequence[Json] = (), is_replaceable: bool = True
    ):
        where = str(path) if line is None else f"{path}, line {line}"
        super().__init__(f"{where}: {reason}.")
        self.path, self.reason, self.line, self.good, self.is_replaceable = path, reason, line, good, is_replaceable


def read_json(path: Path) -> Any:
    """Read a JSON file; None where there is no file.

    Raises:
        DamagedFileError: It cannot be read, or is not JSON.
    """
    content = _read_bytes(path)
    return None if content is None else _parse(path, content)


def read_table(path: Path) -> Json | None:
    """Read a JSON file of a run; None where there is no file.

    Raises:
        DamagedFileError: It cannot be read, or lacks one of the keys of its name.
    """
    value = read_json(path)
    if value is None and not path.is_file():
        return None
    if not isinstance(value, dict):
        raise DamagedFileError(path, f"it holds {_kind(value)}, not a table")
    _check_keys(path, value)
    if path.name == "summary.json":
        _check_parts(path, "final", list(value["final"].values()), ("mean", "std", "seeds"))
    for name, keys in _PARTS.items():
        if name in KEYS.get(path.name, ()):
            _check_parts(path, name, value[name], keys)
    return value


def read_resolved(directory: Path) -> Json | None:
    """Read resolved.json, or the choices.json of an older version, with the key `why` for `reason`.

    Raises:
        DamagedFileError: The file is damaged.
    """
    if (table := read_table(directory / RESOLVED)) is None:
        table = read_table(directory / _OLD_RESOLVED)
    if table is not None and "why" in table:
        table["reason"] = table.pop("why")
    return table


def read_lines(path: Path) -> tuple[list[Json], bool]:
    """Read a .jsonl file.

    Returns:
        The complete lines, none where there is no file, and whether a kill left an incomplete one behind them.

    Raises:
        DamagedFileError: A complete line is not what a run writes, or a round and seed is there twice.
    """
    content = _read_bytes(path) or b""
    whole, _, torn = content.rpartition(b"\n")
    lines: list[Json] = []
    written: set[tuple[int, int]] = set()
    for number, line in enumerate(whole.split(b"\n") if whole else [], 1):
        try:
            record = _parse(path, line)
            if not isinstance(record, dict):
                raise DamagedFileError(path, f"it holds {_kind(record)}, not a table")
            _check_keys(path, record)
            _check_line(path, record, lines, written)
        except DamagedFileError as error:
            raise DamagedFileError(path, error.reason, number, lines) from error
        lines.append(record)
    return lines, bool(torn)


def read_rows(path: Path) -> list[dict[str, str]] | None:
    """Read the rows of per_client.csv, cells as text; None where there is no file.

    Raises:
        DamagedFileError: It cannot be read, or is not the table of a run.
    """
    content = _read_bytes(path)
    if content is None:
        return None
    try:
        reader = csv.DictReader(io.StringIO(content.decode(), newline=""), strict=True)
        rows = list(reader)
    except (ValueError, csv.Error) as error:
        raise DamagedFileError(path, f"it is not a table ({error})") from error
    columns = reader.fieldnames or []
    if missing := next((name for name in _COLUMNS if name not in columns), None):
        raise DamagedFileError(path, f"there is no column '{missing}' in it" if columns else "it is empty")
    for number, row in enumerate(rows, 1):
        if (
            None in row
            or None in row.values()
            or not all(map(_is_number, [row[name] for name in columns[len(_COLUMNS) :]]))
        ):
            raise DamagedFileError(path, f"its row {number} below the heading is not of its columns")
    return rows


def _is_number(cell: str) -> bool:
    """Whether a cell is a number or empty, which means that nothing was measured."""
    try:
        float(cell or 0)
    except ValueError:
        return False
    return True


def _read_bytes(path: Path) -> bytes | None:
    try:
        return read_regular(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        reason = f"it cannot be read ({error.strerror or error})"
        raise DamagedFileError(path, reason, is_replaceable=False) from error


def _parse(path: Path, content: bytes) -> Any:
    if not content.strip():
        raise DamagedFileError(path, "it is empty")
    try:
        return json.loads(content.decode())
    except (ValueError, RecursionError) as error:
        raise DamagedFileError(path, f"not JSON ({error})") from error


def _kind(value: Any) -> str:
    return _KINDS.get(type(value), "null")


def _check_keys(path: Path, value: Json) -> None:
    for key in KEYS.get(path.name, ()):
        if key not in value:
            raise DamagedFileError(path, f"there is no '{key}' in it")
        if key in _TABLES and not isinstance(value[key], dict):
            raise DamagedFileError(path, f"'{key}' is {_kind(value[key])}, not a table")


def _check_parts(path: Path, name: str, values: Any, keys: Sequence[str]) -> None:
    if not isinstance(values, list) or not all(isinstance(each, dict) for each in values):
        raise DamagedFileError(path, f"'{name}' is not a list of tables")
    if missing := next((key for each in values for key in keys if key not in each), None):
        raise DamagedFileError(path, f"there is no '{missing}' in one of its {name}")


def _check_line(path: Path, record: Json, before: Sequence[Json], written: set[tuple[int, int]]) -> None:
    for key in ("round", "seed"):
        if type(record[key]) is not int:
            raise DamagedFileError(path, f"'{key}' is {_kind(record[key])} and not a whole number")
    place = record["round"], record["seed"]
    if place in written:
        raise DamagedFileError(path, f"round {place[0]} of seed {place[1]} is there a second time")
    written.add(place)
    if path.name == METRICS:
        if before and record.keys() != before[0].keys():
            name = min(record.keys() ^ before[0].keys())
            raise DamagedFileError(path, f"'{name}' is in this line or in the first, not in both")
        if wrong := next((key for key, value in record.items() if type(value) not in (int, float, type(None))), None):
            raise DamagedFileError(path, f"'{wrong}' is {_kind(record[wrong])} and not a number")

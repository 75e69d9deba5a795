"""Reading of the files that a run leaves in its directory."""

import csv
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fedjax_het._internal.regular_files import read_regular
from fedjax_het.errors import InputError

Json = dict[str, Any]
METRICS, DIAGNOSTICS, PER_CLIENT = "metrics.jsonl", "diagnostics.jsonl", "per_client.csv"
SELECTED = "selected.jsonl"  # the clients' rows in the round that is best on validation examples, for each seed
RESOLVED = "resolved.json"  # the values that "auto" was resolved to
KEYS = {
    "config.json": ("algorithm", "model", "data", "rounds", "seed", "num_seeds"),
    RESOLVED: ("layout", "devices"),
    "partition.json": ("fingerprint", "clients", "test", "unseen", "fractions"),
    "summary.json": ("final", "facts", "versions", "rounds"),
    METRICS: ("round", "seed", "seconds"),
    DIAGNOSTICS: ("round", "seed", "cohort"),
    SELECTED: ("round", "seed", "clients"),
}
"""The keys that every table of a file has."""

_COLUMNS = ("seed", "client", "is_newcomer")


class DamagedFileError(InputError):
    """A damaged file of a run. The message names the file and the fault, and says how to fix it.

    The lines of a .jsonl file are written once; the command of a run writes its other files again from a checkpoint.
    """

    def __init__(self, path: Path, reason: str, line: int | None = None):
        where = str(path) if line is None else f"{path}, line {line}"
        again = f"Put it back, or delete the folder '{path.parent}': the command of the run trains it again."
        remedy = again if path.suffix == ".jsonl" else "Delete it: the command of the run writes it again."
        super().__init__(f"{where}: {reason}. {remedy}")


def read_json(path: Path) -> Any:
    """Read a JSON file; None where there is no file.

    Raises:
        DamagedFileError: It cannot be read, or is not JSON.
    """
    return _read(path, json.loads)


def read_table(path: Path) -> Json | None:
    """Read a JSON file of a run; None where there is no file.

    Raises:
        DamagedFileError: It cannot be read, or lacks one of the keys of its name.
    """
    return _read(path, lambda text: _check_keys(path, json.loads(text)))


def read_lines(path: Path) -> tuple[list[Json], bool]:
    """Read a .jsonl file.

    Returns:
        The complete lines, none where there is no file, and whether a kill left an incomplete one behind them.

    Raises:
        DamagedFileError: A complete line is not what a run writes, or a round and seed is there twice.
    """
    whole, end, torn = (_read(path, str) or "").rpartition("\n")
    lines: dict[tuple[int, int], Json] = {}
    for number, text in enumerate(whole.split("\n") if end else [], 1):
        try:
            record = _check_keys(path, json.loads(text))
            _check_line(path.name, record, lines)
        except (ValueError, RecursionError) as error:
            raise DamagedFileError(path, _fault(error), number) from error
        lines[record["round"], record["seed"]] = record
    return list(lines.values()), bool(torn)


def read_rows(path: Path) -> list[dict[str, str]] | None:
    """Read the rows of per_client.csv, cells as text; None where there is no file.

    Raises:
        DamagedFileError: It cannot be read, or is not the table of a run.
    """
    return _read(path, _parse_rows)


def _parse_rows(text: str) -> list[dict[str, str]]:
    reader = csv.DictReader(io.StringIO(text, newline=""), strict=True)
    rows, columns = list(reader), reader.fieldnames or []
    if missing := next((name for name in _COLUMNS if name not in columns), None):
        raise ValueError(f"there is no column '{missing}' in it")
    for row in rows:
        if None in row or None in row.values():
            raise ValueError(f"row {reader.line_num} does not have its columns")
        for name in columns[len(_COLUMNS) :]:
            float(row[name] or 0)  # an empty cell was not measured
    return rows


def _read(path: Path, parse: Callable[[str], Any]) -> Any:
    try:
        return parse(read_regular(path).decode())
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError, RecursionError, csv.Error) as error:
        raise DamagedFileError(path, _fault(error)) from error


def _fault(error: Exception) -> str:
    if isinstance(error, json.JSONDecodeError | UnicodeDecodeError | RecursionError):
        return f"not JSON ({error})"
    return f"it cannot be read ({error.strerror or error})" if isinstance(error, OSError) else str(error)


def _check_keys(path: Path, value: Any) -> Json:
    if missing := next((key for key in KEYS[path.name] if not isinstance(value, dict) or key not in value), None):
        raise ValueError(f"there is no '{missing}' in it")
    return value


def _check_line(name: str, record: Json, before: dict[tuple[int, int], Json]) -> None:
    if not type(record["round"]) is type(record["seed"]) is int:
        raise ValueError("'round' or 'seed' is not an integer")
    if (record["round"], record["seed"]) in before:
        raise ValueError(f"round {record['round']} of seed {record['seed']} is there a second time")
    if name != METRICS:
        return
    first = next(iter(before.values()), record)
    if wrong := [key for key, value in record.items() if type(value) not in (int, float, type(None))]:
        raise ValueError(f"'{wrong[0]}' is not a number")
    if differing := sorted(record.keys() ^ first.keys()):
        raise ValueError(f"'{differing[0]}' is in this line or in the first, not in both")

"""A file of measured figures, one record at a time, and its Markdown table."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from fedjax_het._internal.regular_files import read_regular
from fedjax_het.cli.runs import json_files
from fedjax_het.errors import InputError

Record = dict[str, Any]


class FigureFile:
    """A file of records, written after every change."""

    def __init__(self, path: Path | None):
        """Raises InputError for a file that was not written by this command; None keeps the records in memory."""
        self._path, self.about, self.records = path, {}, []
        if path and path.exists():
            try:
                held = json.loads(read_regular(path))
                self.about, self.records = held["about"], held["records"]
            except (OSError, ValueError, KeyError, TypeError) as error:
                raise InputError(f"--json: '{path}' was not written by this command. Use another file.") from error

    def add(self, part: str, record: Record) -> None:
        self.records.append({"part": part} | record)
        self._write()

    def describe(self, about: Record) -> None:
        """Raises InputError if the records are of another device."""
        if self.about and self.about["device"] != about["device"]:
            raise InputError(
                f"--json: '{self._path}' was measured on '{self.about['device']}', this is "
                f"'{about['device']}'. Use another file."
            )
        self.about = about
        self._write()

    def missing(self, part: str, names: Iterable[str]) -> list[str]:
        """The names that have no record in the part yet."""
        recorded = {record["name"] for record in self.records if record["part"] == part}
        return [name for name in names if name not in recorded]

    def _write(self) -> None:
        if self._path:
            json_files.write(
                self._path, json_files.to_json({"about": self.about, "records": self.records}, indent=1) + "\n"
            )


def format_table(part: str, records: Sequence[Record]) -> str:
    """A Markdown table with one row per record; lists are left out."""
    rows = [record for record in records if record["part"] == part and not record.get("is_done")]
    shown = [
        {key: value for key, value in row.items() if key != "part" and not isinstance(value, list)} for row in rows
    ]
    columns = list(dict.fromkeys(key for row in shown for key in row))
    lines = [columns, ["---"] * len(columns), *([_text(row.get(column)) for column in columns] for row in shown)]
    return f"{part}\n\n" + "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def _text(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    return "" if value is None else str(value).replace("|", "/").replace("\n", " ")

"""Runs as they lie on the disk, finished or not."""

import csv
import json
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from experiments import looks
from experiments.rundir import RunDirectory
from fedjax_het.errors import InputError

Record = dict[str, Any]
FILES = ("config.json", "choices.json", "metrics.jsonl", "per_client.csv", "summary.json", "partition.json", looks.NAME)
_LINES = {"metrics.jsonl": ("round", "seed", "seconds"), looks.NAME: ("round", "seed", "cohort")}
_SETTINGS = ("algorithm", "model", "data", "rounds", "seed", "num_seeds")
_SUMMARY = ("facts", "versions")
_FACTS = ("cohort_size", "num_parameters", "bytes_down", "bytes_up", "compile_seconds", "held_bytes", "peak_bytes")
_CLIENT = ("client", "is_newcomer", "train", "valid", "test", "classes")
MEND = "Was it written by another version? Report it with that version, or train it anew."
_COLUMNS = ("seed", "client", "is_newcomer", "num_train", "num_test", "loss", "accuracy")


class Run(NamedTuple):
    """What a directory holds; of a run that is still going on, what it has written so far."""

    directory: Path
    settings: Record
    choices: Record
    lines: list[Record]  # of metrics.jsonl: one an evaluation and seed
    clients: list[dict[str, str]]  # of per_client.csv; none before the last round
    summary: Record | None
    partition: Record | None
    looks: list[Record]  # of diagnostics.jsonl
    notes: list[str]  # what was left out, and why
    written: float  # when a file last changed, in seconds since 1970

    @property
    def is_finished(self) -> bool:
        """The summary is what a run writes last."""
        return self.summary is not None

    @property
    def done(self) -> int:
        """Rounds up to the last evaluation."""
        return self.lines[-1]["round"] if self.lines else 0

    @property
    def status(self) -> str:
        if self.is_finished:
            return "finished"
        at = time.strftime("%Y-%m-%d %H:%M", time.localtime(self.written))
        return f"running: round {self.done} of {self.settings['rounds']}, last written {at}"


def read(directory: Path) -> Run:
    """One run. Raises InputError for files that cannot be read, naming the first thing that is not as it should be."""
    notes: list[str] = []
    settings = _table(directory, "config.json", _SETTINGS)
    if not all(isinstance(settings[name], dict) and "name" in settings[name] for name in _SETTINGS[:3]):
        raise InputError(f"{directory / 'config.json'}: algorithm, model and data must be tables with a name. {MEND}")
    summary = _table(directory, "summary.json", _SUMMARY)
    partition = _table(directory, "partition.json", ("fingerprint", "clients"))
    if summary is not None:
        _check(directory / "summary.json", summary["facts"], _FACTS)
    for client in partition["clients"] if partition is not None else ():
        _check(directory / "partition.json", client, _CLIENT)
    return Run(
        directory=directory,
        settings=settings,
        choices=_table(directory, "choices.json") or {},
        lines=_lines(directory / "metrics.jsonl", notes),
        clients=_rows(directory / "per_client.csv"),
        summary=summary,
        partition=partition,
        looks=_lines(directory / looks.NAME, notes),
        notes=notes,
        written=max(stamp(directory), default=0) / 1e9,
    )


def stamp(directory: Path) -> list[int]:
    """When each of the files last changed, in nanoseconds; those that are there."""
    return [os.stat(directory / name).st_mtime_ns for name in FILES if (directory / name).is_file()]


def _table(directory: Path, name: str, keys: Sequence[str] = ()) -> Record | None:
    value = json_of(directory, name)
    if value is not None:
        _check(directory / name, value, keys)
    return value


def _check(where: Path | str, value: Any, keys: Sequence[str]) -> None:
    """Raises InputError unless the value is a table that has these keys."""
    if missing := next((key for key in keys if not isinstance(value, dict) or key not in value), None):
        raise InputError(f"{where}: there is no '{missing}' in it. {MEND}")


def json_of(directory: Path, name: str) -> Any:
    """A JSON file of the directory, or None. Raises InputError where it is not JSON."""
    try:
        return RunDirectory(directory).read(name)
    except InputError as error:
        raise InputError(str(error).removeprefix("--workdir: ")) from error


def _lines(path: Path, notes: list[str]) -> list[Record]:
    """Whole lines; what comes after the last line break was being written, or torn off by a kill."""
    text = path.read_text(errors="replace") if path.is_file() else ""
    whole, _, torn = text.rpartition("\n")
    if torn:
        notes.append(f"{path.name}: the torn last line was left out")
    found = []
    for number, line in enumerate(whole.splitlines(), 1):
        try:
            record = json.loads(line)
        except ValueError as error:
            raise InputError(
                f"{path}, line {number}: not JSON ({error}). Let the run resume, or train it anew."
            ) from error
        _check(f"{path}, line {number}", record, _LINES[path.name])
        found.append(record)
    return _whole_rounds(found)


def _whole_rounds(lines: list[Record]) -> list[Record]:
    """Without a last round that some seeds have not written yet."""
    seeds = {line["seed"] for line in lines}
    if lines and len([line for line in lines if line["round"] == lines[-1]["round"]]) < len(seeds):
        return [line for line in lines if line["round"] != lines[-1]["round"]]
    return lines


def _rows(path: Path) -> list[dict[str, str]]:
    if not path.is_file():
        return []
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    if rows and (missing := next((name for name in _COLUMNS if name not in rows[0]), None)):
        raise InputError(f"{path}: there is no column '{missing}'. {MEND}")
    return rows

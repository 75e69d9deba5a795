"""Runs as they lie on the disk, finished or not."""

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fedjax_het.errors import InputError

from ..runs import diagnostics_log
from ..runs.run_files import DamagedFileError, read_lines, read_rows, read_table

Record = dict[str, Any]
FILES = (
    "config.json",
    "choices.json",
    "metrics.jsonl",
    "per_client.csv",
    "summary.json",
    "partition.json",
    diagnostics_log.NAME,
)
_FACTS = ("cohort_size", "num_parameters", "bytes_down", "bytes_up", "compile_seconds", "held_bytes", "peak_bytes")
MEND = "The command of that run says how to go on; was it written by another version, report it with that one."


class RunData(NamedTuple):
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


def read(directory: Path) -> RunData:
    """One run. Raises InputError for files that cannot be read, naming the first thing that is not as it should be."""
    notes: list[str] = []
    settings = _table(directory, "config.json")
    for name in ("algorithm", "model", "data"):
        _check(f"{directory / 'config.json'}, {name}", settings[name], ("name",))
    summary = _table(directory, "summary.json")
    if summary is not None:
        _check(directory / "summary.json", summary["facts"], _FACTS)
    lines = _lines(directory / "metrics.jsonl", notes)
    if summary is not None and (last := lines[-1]["round"] if lines else 0) != summary["rounds"]:
        path = directory / "metrics.jsonl"
        raise InputError(f"{path} ends at round {last}, and the run at {summary['rounds']}. {MEND}")
    return RunData(
        directory=directory,
        settings=settings,
        choices=_table(directory, "choices.json") or {},
        lines=lines,
        clients=_rows(directory / "per_client.csv"),
        summary=summary,
        partition=_table(directory, "partition.json"),
        looks=_lines(directory / diagnostics_log.NAME, notes),
        notes=notes,
        written=max(stamp(directory), default=0) / 1e9,
    )


def stamp(directory: Path) -> list[int]:
    """When each of the files last changed, in nanoseconds; those that are there."""
    return [os.stat(directory / name).st_mtime_ns for name in FILES if (directory / name).is_file()]


def _table(directory: Path, name: str) -> Record | None:
    try:
        return read_table(directory / name)
    except DamagedFileError as error:
        raise InputError(f"{error} {MEND}") from error


def _check(where: Path | str, value: Record, keys: Sequence[str]) -> None:
    """Raises InputError unless a table has these keys."""
    if missing := next((key for key in keys if key not in value), None):
        raise InputError(f"{where}: there is no '{missing}' in it. {MEND}")


def _lines(path: Path, notes: list[str]) -> list[Record]:
    """Whole lines; what comes after the last line break was being written, or torn off by a kill."""
    try:
        found, is_torn = read_lines(path)
    except DamagedFileError as error:
        raise InputError(f"{error} {MEND}") from error
    if is_torn:
        notes.append(f"{path.name}: the torn last line was left out")
    return _whole_rounds(found)


def _whole_rounds(lines: list[Record]) -> list[Record]:
    """Without a last round that some seeds have not written yet."""
    seeds = {line["seed"] for line in lines}
    if lines and len([line for line in lines if line["round"] == lines[-1]["round"]]) < len(seeds):
        return [line for line in lines if line["round"] != lines[-1]["round"]]
    return lines


def _rows(path: Path) -> list[dict[str, str]]:
    try:
        return read_rows(path) or []
    except DamagedFileError as error:
        raise InputError(f"{error} {MEND}") from error

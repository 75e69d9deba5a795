"""Inspection of a run directory before anything is compiled: damaged files, and where the run resumes."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fedjax_het import engine
from fedjax_het.errors import InputError

from . import records, run_files
from .run_files import METRICS, DamagedFileError, Json

OURS = (METRICS, "summary.json", "checkpoints")
"""Files that are never overwritten in a directory without config.json."""
_REPLACEABLE = {
    "config.json": run_files.read_table,
    "partition.json": run_files.read_table,
    run_files.PER_CLIENT: run_files.read_rows,
    "summary.json": run_files.read_table,
}
"""Files that can be written again from a checkpoint, and how they are read."""


class DirectoryState(NamedTuple):
    """The state in which an earlier start of the command has left a run directory."""

    is_complete: bool  # nothing is left to do but to print the summary
    resolved: Json  # the values of resolved.json; {} where there are none
    identity: Json | None  # of the run, from the newest checkpoint, or else from config.json
    partition: str | None  # the fingerprint of the data that the run began with, where it is known
    notes: list[str]  # what is written or resolved again, and why


def inspect(path: Path, settings: Mapping[str, Any], is_thorough: bool = True) -> DirectoryState:
    """Read everything in a run directory from which its command would resume.

    config.json, partition.json, per_client.csv and summary.json are written again if they are damaged and there is a
    checkpoint, which holds the settings and the partition. The checkpoints of a complete run are not read.

    Args:
        path: The directory, which may be absent.
        settings: The settings of the command.
        is_thorough: Whether all bytes of checkpoints are compared with their checksums.

    Raises:
        InputError: A file, line or checkpoint is damaged, or a checkpoint is missing. The message says how to resume
            without losing the undamaged results.
    """
    tables: dict[str, Any] = {}
    damaged: dict[str, DamagedFileError] = {}
    for name, read in _REPLACEABLE.items():
        try:
            tables[name] = read(path / name)
        except DamagedFileError as error:
            _check_replaceable(error)
            tables[name], damaged[name] = None, error
    if tables["config.json"] is None and (others := [name for name in OURS if (path / name).exists()]):
        damaged.setdefault(
            "config.json", DamagedFileError(path / "config.json", f"it is gone, but {others[0]} is there")
        )
    is_complete = tables["summary.json"] is not None and not damaged
    run = _Inspection(path, settings, is_complete, is_thorough)
    run.check_checkpoints()
    run.check_damaged(damaged)
    run.check_lines(METRICS, settings["evaluate_every"])
    if (path / run_files.SELECTED).exists():
        run.check_lines(run_files.SELECTED, settings["evaluate_every"])
    if settings["diagnostics"]:
        run.check_lines(run_files.DIAGNOSTICS, settings["diagnose_every"])
    resolved, about = run.read_resolved(), run.identity
    config, partition = tables["config.json"], tables["partition.json"]
    notes = [f"{str(error).rstrip('.')}; it is written again" for error in damaged.values()]
    if resolved is None and run.last and not is_complete:
        notes.append(f"{path / run_files.RESOLVED} is gone: the values of 'auto' are determined again")
    return DirectoryState(
        is_complete=is_complete,
        resolved=resolved or {},
        identity=about.get("config", config),
        partition=about.get("partition", partition and partition["fingerprint"]),
        notes=notes,
    )


def _check_replaceable(error: DamagedFileError) -> None:
    if not error.is_replaceable:
        raise InputError(f"--workdir: {error} Make it readable, or move it away.") from error


class _Inspection:
    """The checkpoints of a run, and the checks of its other files against them."""

    def __init__(self, path: Path, settings: Mapping[str, Any], is_complete: bool, is_thorough: bool):
        self._path, self._is_complete, self._rounds = path, is_complete, settings["rounds"]
        self._every = settings["checkpoint_every"] or self._rounds
        self._seeds = range(settings["seed"], settings["seed"] + settings["num_seeds"])
        self._has_summary = (path / "summary.json").exists()
        self._folder = path / "checkpoints"
        self._metrics: list[Json] = []  # the lines of metrics.jsonl, once they have been checked
        try:
            self._saved = engine.inspect_checkpoints(self._folder, is_thorough and not is_complete)
        except OSError as error:
            raise InputError(
                f"--workdir: {error.filename} cannot be read: {error.strerror}. Make it readable."
            ) from error
        self._whole = [each for each in self._saved if not each.damage]

    @property
    def last(self) -> int:
        """Rounds of the newest checkpoint; 0 where there is none."""
        return self._whole[-1].round if self._whole else 0

    @property
    def identity(self) -> Json:
        """The settings and the partition that the newest checkpoint records."""
        identity = self._whole[-1].about["identity"] if self._whole else {}
        return identity if isinstance(identity, dict) else {}

    # ---- checkpoints -------------------------------------------------------------------------------------------------
    def check_checkpoints(self) -> None:
        """Raise InputError for the first damaged checkpoint, unless the run is complete."""
        if self._is_complete:
            return
        if self._folder.exists() and not self._folder.is_dir():
            raise InputError(f"--workdir: {self._folder}: it is no folder. Move it away.")
        for each in self._saved:
            if each.damage:
                where = self._folder / str(each.round)
                again = "" if self.last > each.round else ", and the rounds after it give the same results again"
                without = f"Delete it: the run resumes from checkpoint {self.last}{again}."
                raise InputError(
                    f"--workdir: {where}: the checkpoint is damaged: {each.damage}. "
                    + (without if self.last else f"No other checkpoint is complete: {self._restart_advice()}")
                )

    def check_damaged(self, damaged: Mapping[str, DamagedFileError]) -> None:
        """Raise InputError for a file that could only be written again from a checkpoint that is missing."""
        resume = f"delete it: the run resumes from checkpoint {self.last} and writes it at the end."
        delete = "delete it: the other results stay."
        remedies = {
            "config.json": (1, self._restart_advice()),
            "partition.json": (self._rounds if self._has_summary else 0, delete),
            run_files.PER_CLIENT: (self._rounds if self._has_summary else 0, delete),
            "summary.json": (self._rounds, resume if self.last else self._restart_advice()),
        }
        for name, error in damaged.items():
            needed, remedy = remedies[name]
            if self.last < needed:
                unknown = "There is no checkpoint from which it could be written again"
                raise InputError(f"--workdir: {error} {unknown}: put the file back, or {remedy}") from error

    # ---- lines -------------------------------------------------------------------------------------------------------
    def check_lines(self, name: str, every: int) -> None:
        """Raise InputError for a damaged line, for missing lines, and for lines whose checkpoint is missing."""
        path = self._path / name
        try:
            lines = run_files.read_lines(path)[0]
            self._check_places(path, lines)
        except DamagedFileError as error:
            _check_replaceable(error)
            raise InputError(
                f"--workdir: {error} {self._resume_advice(path, error.line or 1, error.good, every)}"
            ) from error
        done = self._rounds if self._is_complete and path.exists() else self.last
        if missing := next(self._missing(name, lines, every, done), None):
            round, seed = missing
            good = [line for line in lines if line["round"] < round]
            raise InputError(
                f"--workdir: {path}: there is no line for round {round} of seed {seed}, which the run has passed. "
                f"{self._resume_advice(path, len(good) + 1, good, every)}"
            )
        if name == METRICS:
            self._metrics = lines
            if not self._is_complete:
                self._check_checkpoint_of_lines(path, lines)

    def _check_places(self, path: Path, lines: Sequence[Json]) -> None:
        for i, line in enumerate(lines):
            if line["seed"] not in self._seeds or not 0 <= line["round"] <= self._rounds:
                reason = f"round {line['round']} of seed {line['seed']} does not belong to this run"
                raise DamagedFileError(path, reason, i + 1, lines[:i])

    def _missing(self, name: str, lines: Sequence[Json], every: int, done: int) -> Iterator[tuple[int, int]]:
        """Yield (round, seed) of the missing lines of a run that has done so many rounds."""
        existing = {(line["round"], line["seed"]) for line in lines}
        if name == run_files.SELECTED:
            improving = [(line["round"], line["seed"]) for line in records.improving_lines(self._metrics)]
            yield from (place for place in improving if place[0] <= done and place not in existing)
            return
        expected = list(range(every, done + 1, every))
        if name == METRICS:
            expected += [done] if done == self._rounds and done % every else []
        else:
            expected = [0, *expected] if done else []
            expected = [round for round in expected if round < self._rounds]
        yield from ((round, seed) for round in expected for seed in self._seeds if (round, seed) not in existing)

    def _check_checkpoint_of_lines(self, path: Path, lines: Sequence[Json]) -> None:
        """A line is written before the checkpoint of its round: the checkpoint before that one must exist."""
        reached = max((line["round"] for line in lines), default=0)
        needed = self._rounds if self._has_summary else max(reached - 1, 0) // self._every * self._every
        if self.last >= needed:
            return
        number = 1 + sum(line["round"] <= self.last for line in lines)
        summary = " and delete summary.json" if self._has_summary else ""
        raise InputError(
            f"--workdir: {path} goes up to round {reached}, but checkpoint {needed} is missing in {self._folder}: "
            + (f"{self.last} is the last. " if self.last else "there is none. ")
            + "Put it back, or "
            + (
                f"cut {path.name} off before line {number}{summary}: the run resumes from checkpoint {self.last}."
                if self.last
                else self._restart_advice()
            )
        )

    def _resume_advice(self, path: Path, number: int, good: Sequence[Json], every: int) -> str:
        """Say how to resume if the lines from this number on are lost."""
        rounds = [each.round for each in self._whole]
        usable = [each for each in rounds if next(self._missing(path.name, good, every, each), None) is None]
        if not usable:
            return f"Put back what was there, or {self._restart_advice()}"
        last = usable[-1]
        others = [f"checkpoints/{round}" for round in rounds if round > last]
        others += ["summary.json"] if self._has_summary and last < self._rounds else []
        deleting = f" and delete {', '.join(others)}" if others else ""
        return (
            f"Put back what was there, or cut {path.name} off before line {number}{deleting}: the run resumes from "
            f"checkpoint {last}, and the rounds after it give the same results again."
        )

    def _restart_advice(self) -> str:
        old = self._path.with_name(f"{self._path.name}.old")
        return f"move the run away (mv {self._path} {old}): the same command trains it from its first round."

    def read_resolved(self) -> Json | None:
        """Raise InputError if resolved.json is damaged: results depend on it to the bit, and no other file has it."""
        try:
            return run_files.read_resolved(self._path)
        except DamagedFileError as error:
            _check_replaceable(error)
            start = f"resumes from checkpoint {self.last}" if self.last else "starts"
            moved = f"the run {start} with new values of 'auto', equal within rounding, not to the bit."
            raise InputError(
                f"--workdir: {error} Put it back, or move it away: "
                + ("the results stay as they are." if self._is_complete else moved)
            ) from error

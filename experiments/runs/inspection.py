"""Inspection of a run directory before anything is compiled: what is damaged there, and where the run goes on."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fedjax_het import engine
from fedjax_het.errors import InputError

from . import records
from .run_files import (
    DIAGNOSTICS,
    METRICS,
    PER_CLIENT,
    SELECTED,
    DamagedFileError,
    Json,
    read_lines,
    read_rows,
    read_table,
)

OURS = (METRICS, "summary.json", "checkpoints")
"""What is never written over in a directory that does not tell whose run it holds."""
_REPLACEABLE = {
    "config.json": read_table,
    "partition.json": read_table,
    PER_CLIENT: read_rows,
    "summary.json": read_table,
}
"""What a checkpoint is enough to write anew."""


class DirectoryState(NamedTuple):
    """What an earlier start of the command has left."""

    is_complete: bool  # nothing is left to do but to print the summary
    choices: Json  # {} where there are none
    identity: Json | None  # what the newest checkpoint, or else config.json, says of the run; None where neither does
    partition: str | None  # the fingerprint of the data that the run began with, where it is known
    notes: list[str]  # what is written or chosen anew, and why


def inspect(path: Path, settings: Mapping[str, Any], is_thorough: bool = True) -> DirectoryState:
    """Read everything in a run directory that its command would go on from.

    config.json, partition.json, per_client.csv and summary.json are written anew where they are damaged and there is a
    checkpoint to make them from: it knows the settings and the partition. Those of a complete run are not looked at.

    Args:
        path: The directory, which may be absent.
        settings: Those that the command gives now.
        is_thorough: Whether all bytes of checkpoints are compared with their checksums.

    Raises:
        InputError: For a damaged file, line or checkpoint, and for a checkpoint that is gone. The message says how to
            go on without losing what is good.
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
            "config.json", DamagedFileError(path / "config.json", f"it is gone, and {others[0]} is there")
        )
    is_complete = tables["summary.json"] is not None and not damaged
    run = _Inspection(path, settings, is_complete, is_thorough)
    run.check_checkpoints()
    run.check_damaged(damaged)
    run.check_lines(METRICS, settings["evaluate_every"])
    if (path / SELECTED).exists():
        run.check_lines(SELECTED, settings["evaluate_every"])
    if settings["diagnostics"]:
        run.check_lines(DIAGNOSTICS, settings["diagnose_every"])
    choices, about = run.choices(), run.identity
    config, partition = tables["config.json"], tables["partition.json"]
    notes = [f"{str(error).rstrip('.')}; it is written anew" for error in damaged.values()]
    if choices is None and run.last and not is_complete:
        notes.append(f"{path / 'choices.json'} is gone: what 'auto' comes to is found out anew")
    return DirectoryState(
        is_complete=is_complete,
        choices=choices or {},
        identity=about.get("config", config),
        partition=about.get("partition", partition and partition["fingerprint"]),
        notes=notes,
    )


def _check_replaceable(error: DamagedFileError) -> None:
    if not error.is_replaceable:
        raise InputError(f"--workdir: {error} Make it readable, or move it away.") from error


class _Inspection:
    """The checkpoints of a run, and what its other files must hold beside them."""

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
        """What the newest checkpoint says of the run."""
        found = self._whole[-1].about["identity"] if self._whole else {}
        return found if isinstance(found, dict) else {}

    # ---- checkpoints -------------------------------------------------------------------------------------------------
    def check_checkpoints(self) -> None:
        """Raises InputError for the first that is damaged, unless the run is complete."""
        if self._is_complete:
            return
        if self._folder.exists() and not self._folder.is_dir():
            raise InputError(f"--workdir: {self._folder}: it is no folder. Move it away.")
        for each in self._saved:
            if each.damage:
                where = self._folder / str(each.round)
                again = "" if self.last > each.round else ", and later rounds come out the same again"
                without = f"Delete it: the run goes on from checkpoint {self.last}{again}."
                raise InputError(
                    f"--workdir: {where}: the checkpoint is damaged: {each.damage}. "
                    + (without if self.last else f"No other is whole: {self._afresh()}")
                )

    def check_damaged(self, damaged: Mapping[str, DamagedFileError]) -> None:
        """Raises InputError for a file that could only be made of a checkpoint that is not there."""
        going_on = f"delete it: the run goes on from checkpoint {self.last} and writes it at the end."
        deleting = "delete it: the other results stay."
        otherwise = {
            "config.json": (1, self._afresh()),
            "partition.json": (self._rounds if self._has_summary else 0, deleting),
            PER_CLIENT: (self._rounds if self._has_summary else 0, deleting),
            "summary.json": (self._rounds, going_on if self.last else self._afresh()),
        }
        for name, error in damaged.items():
            needed, remedy = otherwise[name]
            if self.last < needed:
                unknown = "No checkpoint is there that it could be made of"
                raise InputError(f"--workdir: {error} {unknown}: put the file back, or {remedy}") from error

    # ---- lines -------------------------------------------------------------------------------------------------------
    def check_lines(self, name: str, every: int) -> None:
        """Raises InputError for a damaged line, lines that are missing, and lines whose checkpoint is gone."""
        path = self._path / name
        try:
            lines = read_lines(path)[0]
            self._check_known(path, lines)
        except DamagedFileError as error:
            _check_replaceable(error)
            raise InputError(f"--workdir: {error} {self._remedy(path, error.line, error.good, every)}") from error
        done = self._rounds if self._is_complete and path.exists() else self.last
        if missing := next(self._missing(name, lines, every, done), None):
            round, seed = missing
            good = [line for line in lines if line["round"] < round]
            raise InputError(
                f"--workdir: {path}: there is no line for round {round} of seed {seed}, which the run has passed. "
                f"{self._remedy(path, len(good) + 1, good, every)}"
            )
        if name == METRICS:
            self._metrics = lines
            if not self._is_complete:
                self._check_not_gone(path, lines)

    def _check_known(self, path: Path, lines: Sequence[Json]) -> None:
        for i, line in enumerate(lines):
            if line["seed"] not in self._seeds or not 0 <= line["round"] <= self._rounds:
                reason = f"round {line['round']} of seed {line['seed']} is none of this run's"
                raise DamagedFileError(path, reason, i + 1, lines[:i])

    def _missing(self, name: str, lines: Sequence[Json], every: int, done: int) -> Iterator[tuple[int, int]]:
        """(round, seed) of the lines that are not there though the run has done so many rounds."""
        there = {(line["round"], line["seed"]) for line in lines}
        if name == SELECTED:
            improving = [(line["round"], line["seed"]) for line in records.improving_lines(self._metrics)]
            yield from (place for place in improving if place[0] <= done and place not in there)
            return
        wanted = list(range(every, done + 1, every))
        if name == METRICS:
            wanted += [done] if done == self._rounds and done % every else []
        else:
            wanted = [0, *wanted] if done else []
            wanted = [round for round in wanted if round < self._rounds]
        yield from ((round, seed) for round in wanted for seed in self._seeds if (round, seed) not in there)

    def _check_not_gone(self, path: Path, lines: Sequence[Json]) -> None:
        """A line is written before the checkpoint of its round: it tells that the one before that was there."""
        reached = max((line["round"] for line in lines), default=0)
        needed = self._rounds if self._has_summary else max(reached - 1, 0) // self._every * self._every
        if self.last >= needed:
            return
        number = 1 + sum(line["round"] <= self.last for line in lines)
        summary = " and delete summary.json" if self._has_summary else ""
        raise InputError(
            f"--workdir: {path} goes up to round {reached}, but checkpoint {needed} is gone from {self._folder}, where "
            + (f"{self.last} is the last. " if self.last else "there is none. ")
            + "Put it back, or "
            + (
                f"cut {path.name} off before line {number}{summary}: the run goes on from checkpoint {self.last}."
                if self.last
                else self._afresh()
            )
        )

    def _remedy(self, path: Path, number: int, good: Sequence[Json], every: int) -> str:
        """How to go on where the lines from this one on are not to be had."""
        rounds = [each.round for each in self._whole]
        usable = [each for each in rounds if next(self._missing(path.name, good, every, each), None) is None]
        if not usable:
            return f"Put back what was there, or {self._afresh()}"
        last = usable[-1]
        others = [f"checkpoints/{round}" for round in rounds if round > last]
        others += ["summary.json"] if self._has_summary and last < self._rounds else []
        deleting = f" and delete {', '.join(others)}" if others else ""
        return (
            f"Put back what was there, or cut {path.name} off before line {number}{deleting}: the run goes on from "
            f"checkpoint {last}, and later rounds come out the same again."
        )

    def _afresh(self) -> str:
        old = self._path.with_name(f"{self._path.name}.old")
        return f"move the run away (mv {self._path} {old}): the same command trains it from its first round."

    def choices(self) -> Json | None:
        """Raises InputError where choices.json is damaged: bits depend on it, and no other file knows what it says."""
        try:
            return read_table(self._path / "choices.json")
        except DamagedFileError as error:
            _check_replaceable(error)
            on = f"goes on from checkpoint {self.last}" if self.last else "starts"
            moved = f"the run {on} with what 'auto' comes to now, equal within rounding, not to the bit."
            raise InputError(
                f"--workdir: {error} Put it back, or move it away: "
                + ("the results stay as they are." if self._is_complete else moved)
            ) from error

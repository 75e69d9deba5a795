"""Inspection of a run directory before anything is compiled: damaged files, and where the run resumes."""

import contextlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fedjax_het import engine
from fedjax_het.cli.runs import records, run_files
from fedjax_het.cli.runs.run_files import METRICS, RESOLVED, SELECTED, DamagedFileError, Json, read_lines, read_table
from fedjax_het.errors import InputError

_OURS = (METRICS, "summary.json", "checkpoints")
"""Files that are never overwritten in a directory whose run is not known."""


class DirectoryState(NamedTuple):
    """The state in which an earlier start of the command has left a run directory."""

    is_complete: bool  # nothing is left to do but to print the summary
    resolved: Json  # the values of resolved.json; {} where there are none
    identity: Json | None  # of the run, from the newest checkpoint, or else from config.json
    partition: str | None  # the fingerprint of the data that the run began with, where it is known
    notes: list[str]  # what is resolved again, and why


def inspect(path: Path, settings: Mapping[str, Any], is_thorough: bool = True) -> DirectoryState:
    """Read everything in a run directory from which its command would resume.

    The checkpoint is the truth: what is missing of config.json, partition.json, per_client.csv and summary.json is
    written again from it, and rounds after it are trained again. The checkpoints of a complete run are not read.

    Args:
        path: The directory, which may be absent.
        settings: The settings of the command.
        is_thorough: Whether all bytes of checkpoints are compared with their checksums.

    Raises:
        InputError: A file, line or checkpoint is damaged, or a line is missing.
    """
    config, partition, summary = (read_table(path / name) for name in ("config.json", "partition.json", "summary.json"))
    resolved, clients = read_table(path / RESOLVED), run_files.read_rows(path / run_files.PER_CLIENT)
    is_complete = None not in (config, partition, summary, clients)
    saved = None if is_complete else _read_last_checkpoint(path / "checkpoints", is_thorough)
    last, identity = (saved.round, saved.about["identity"]) if saved else (0, {})
    if config is None and not saved and (others := [name for name in _OURS if (path / name).exists()]):
        raise InputError(
            f"{path / 'config.json'}: it is gone, but {others[0]} is there. Put it back, or choose another directory."
        )
    _check_lines(path, settings, settings["rounds"] if is_complete else last)
    again = f"{path / RESOLVED} is gone: the values of 'auto' are determined again"
    return DirectoryState(
        is_complete=is_complete,
        resolved=resolved or {},
        identity=identity.get("config", config),
        partition=identity.get("partition", partition and partition["fingerprint"]),
        notes=[again] if last and resolved is None else [],
    )


def _read_last_checkpoint(folder: Path, is_thorough: bool) -> engine.SavedCheckpoint | None:
    """Return the newest checkpoint; raise InputError if one is damaged."""
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder}: it is not a folder. Delete it.")
    try:
        saved = engine.inspect_checkpoints(folder, is_thorough)
    except OSError as error:
        raise InputError(f"{error.filename} cannot be read: {error.strerror}. Make it readable.") from error
    whole = [checkpoint for checkpoint in saved if not checkpoint.damage]
    for save in saved:
        if save.damage:
            start = f"resumes from checkpoint {whole[-1].round}" if whole else "starts again"
            raise InputError(
                f"{folder / str(save.round)}: the checkpoint is damaged: {save.damage}. Delete it: the run {start}."
            )
    return whole[-1] if whole else None


def has_checkpoint(folder: Path, round: int, is_thorough: bool) -> bool:
    """Whether the newest checkpoint is that of a round, and none is damaged."""
    with contextlib.suppress(InputError):
        last = _read_last_checkpoint(folder, is_thorough)
        return last is not None and last.round == round
    return False


def _check_lines(path: Path, settings: Mapping[str, Any], done: int) -> None:
    """Raise InputError for a line that is damaged, of another run, or missing after `done` rounds."""
    seeds = range(settings["seed"], settings["seed"] + settings["num_seeds"])
    metrics = read_lines(path / METRICS)[0]
    improving = {(line["round"], line["seed"]) for line in records.improving_lines(metrics)}
    expected = {METRICS: _evaluated(settings, done)}
    if (path / SELECTED).exists():
        expected[SELECTED] = sorted({round for round, _ in improving if round <= done})
    if settings["diagnostics"] and done:
        expected[run_files.DIAGNOSTICS] = range(0, min(done + 1, settings["rounds"]), settings["diagnose_every"])
    for name, rounds in expected.items():
        places = {(line["round"], line["seed"]) for line in read_lines(path / name)[0]}
        for round, seed in places:
            if seed not in seeds or not 0 <= round <= settings["rounds"]:
                raise DamagedFileError(path / name, f"round {round} of seed {seed} does not belong to this run")
        for round, seed in ((round, seed) for round in rounds for seed in seeds):
            if (round, seed) not in places and (name != SELECTED or (round, seed) in improving):
                raise DamagedFileError(path / name, f"there is no line for round {round} of seed {seed}")


def _evaluated(settings: Mapping[str, Any], done: int) -> Sequence[int]:
    rounds, every = settings["rounds"], settings["evaluate_every"]
    return [round for round in range(1, done + 1) if round % every == 0 or round == rounds]

"""Results of runs, finished or not, read from their directories."""

import math
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedjax_het import engine
from fedjax_het.cli.runs import run_files
from fedjax_het.cli.runs.run_files import METRICS, Json
from fedjax_het.errors import InputError

FILES = (*run_files.KEYS, run_files.PER_CLIENT)


class RunResults:
    """The results of one run. Each file is read and checked at its first use.

    All properties raise InputError for a damaged file: the message names the file, the damage and what to do.

    Attributes:
        directory: the run directory.
        notes: the lines that were skipped in the files, and why.
    """

    def __init__(self, directory: Path):
        self.directory, self.notes = Path(directory), []

    @cached_property
    def settings(self) -> Json:
        """The config, completed by the defaults."""
        return self._read("config.json")

    @cached_property
    def resolved(self) -> Json:
        """The values that "auto" was resolved to, and the devices."""
        return run_files.read_table(self.directory / run_files.RESOLVED) or {}

    @cached_property
    def lines(self) -> list[Json]:
        """The lines of metrics.jsonl: one per evaluation and seed."""
        return self._read_lines(METRICS)

    @cached_property
    def snapshots(self) -> list[Json]:
        """The lines of diagnostics.jsonl: one per snapshot and seed."""
        return self._read_lines(run_files.DIAGNOSTICS)

    @cached_property
    def last_snapshots(self) -> list[Json]:
        """The lines of the last round with diagnostics: one per seed."""
        return [line for line in self.snapshots if line["round"] == self.snapshots[-1]["round"]]

    def cohort_names(self, snapshot: Json) -> list[str]:
        """Return the names of the clients of a snapshot's cohort, in its order."""
        known = [client["client"] for client in self.partition["clients"]] if self.partition else []
        return [known[i] if i < len(known) else f"client {i}" for i in snapshot["cohort"]["ids"]]

    @cached_property
    def clients(self) -> list[dict[str, str]]:
        """The rows of per_client.csv: one per client and seed; none before the last round."""
        return run_files.read_rows(self.directory / run_files.PER_CLIENT) or []

    @cached_property
    def improvements(self) -> list[Json]:
        """The lines of selected.jsonl: one per seed and round that did best on validation examples so far."""
        return self._read_lines(run_files.SELECTED)

    @cached_property
    def selected_clients(self) -> list[Json]:
        """The clients' rows in the round that is selected on validation examples, for each seed.

        Raises:
            InputError: The run selects no round, because no client has validation examples.
        """
        rounds = self.selected["rounds"]
        lines = {(line["seed"], line["round"]): line["clients"] for line in self.improvements}
        seeds = sorted({seed for seed, _ in lines})
        return [row for seed, round in zip(seeds, rounds, strict=True) for row in lines[seed, round]]

    @cached_property
    def partition(self) -> Json | None:
        """The clients with their numbers of examples."""
        return run_files.read_table(self.directory / "partition.json")

    @property
    def partition_clients(self) -> list[Json]:
        """The clients of `partition`.

        Raises:
            InputError: There is no partition.json.
        """
        return self._read("partition.json")["clients"]

    @cached_property
    def summary(self) -> Json | None:
        """The last file that a run writes; None before its end."""
        return run_files.read_table(self.directory / "summary.json")

    @property
    def final(self) -> Mapping[str, Json]:
        """{figure: {"mean", "std", "seeds"}} after the last round; empty before the end of the run."""
        return self.summary["final"] if self.summary else {}

    @property
    def selected(self) -> Json:
        """{"by", "rounds", "figures"} of the round that is selected on validation examples.

        Raises:
            InputError: The run selects no round, because no client has validation examples.
        """
        if not self.summary or not self.summary.get("selected"):
            raise InputError(
                f"{self.directory}: no client has validation examples. Set data.valid_fraction and train it again."
            )
        return self.summary["selected"]

    @cached_property
    def written(self) -> float:
        """The time of the last change of a file, in seconds since 1970."""
        return max(modification_times(self.directory), default=0) / 1e9

    @property
    def is_finished(self) -> bool:
        return self.summary is not None

    @property
    def done(self) -> int:
        """The number of rounds up to the last evaluation."""
        return self.lines[-1]["round"] if self.lines else 0

    @property
    def status(self) -> str:
        if self.is_finished:
            return "finished"
        moment = time.strftime("%Y-%m-%d %H:%M", time.localtime(self.written))
        return f"running: round {self.done} of {self.settings['rounds']}, last written {moment}"

    def load(self) -> "RunResults":
        """Read all files now, and check that they agree.

        Raises:
            InputError: A file is damaged or missing.
        """
        for name in ("settings", "summary", "lines", "resolved", "clients", "partition", "snapshots", "written"):
            getattr(self, name)
        if self.summary is not None and self.done != self.summary["rounds"]:
            path = self.directory / METRICS
            raise InputError(f"{path} ends at round {self.done}, but the run at {self.summary['rounds']}. Put it back.")
        return self

    def _read(self, name: str) -> Json:
        if (table := run_files.read_table(self.directory / name)) is None:
            raise InputError(f"{self.directory / name}: there is no such file. The command of the run writes it.")
        return table

    def _read_lines(self, name: str) -> list[Json]:
        """Read the complete lines of the rounds that all seeds have written."""
        lines, is_torn = run_files.read_lines(self.directory / name)
        if is_torn:
            self.notes.append(f"{name}: the incomplete last line is left out")
        last = [line for line in lines if line["round"] == lines[-1]["round"]]
        if name != run_files.SELECTED and len(last) < len({line["seed"] for line in lines}):
            return lines[: -len(last)]
        return lines


def modification_times(directory: Path) -> list[int]:
    """The times at which the existing files of a run last changed, in nanoseconds."""
    return [os.stat(directory / name).st_mtime_ns for name in FILES if (directory / name).is_file()]


# ---- run directories below a path ------------------------------------------------------------------------------------
class MissingRun(NamedTuple):
    """A run of a grid that has no directory."""

    name: str
    status: str  # how it ended


def read_runs(paths: Sequence[Path]) -> tuple[list[RunResults], list[MissingRun]]:
    """Read all runs of run directories and of grids.

    Args:
        paths: directories of `fedjax-het train` or `fedjax-het compare`.

    Returns:
        The runs, each once, in the order given, and the runs of grids that were never started.

    Raises:
        InputError: A path holds no run, or a file is damaged or of another version.
    """
    runs: dict[Path, RunResults] = {}
    missing: list[MissingRun] = []
    for path in paths:
        directories, without = find_runs(path)
        missing += without
        for directory in directories:
            if directory.resolve() not in runs:
                runs[directory.resolve()] = RunResults(directory).load()
    if not runs:
        raise InputError(f"{', '.join(map(str, paths))}: none of the runs has been started. Train one first.")
    return list(runs.values()), missing


def find_runs(path: Path) -> tuple[list[Path], list[MissingRun]]:
    """Find the run directories of a path: itself, or the runs in grid.json, or the runs in it before there is one.

    Raises:
        InputError: The path is neither a run directory nor a grid.
    """
    if (path / "config.json").is_file():
        return [path], []
    grid = run_files.read_json(path / "grid.json")
    if grid is None:
        if inside := sorted(config.parent for config in path.glob("*/config.json")):
            return inside, []
        problem = "has no config.json and no grid.json" if path.is_dir() else "is not a directory"
        raise InputError(f"{path}: {problem}. Pass a directory written by `train` or `compare`.")
    if not isinstance(grid, list) or not all(isinstance(run, dict) and {"cell", "status"} <= set(run) for run in grid):
        raise InputError(f"{path / 'grid.json'}: it is not a list of runs. Delete it.")
    found = [run for run in grid if (path / run["cell"] / "config.json").is_file()]
    missing = [MissingRun(run["cell"], run["status"]) for run in grid if run not in found]
    return [path / run["cell"] for run in found], missing


# ---- scores ----------------------------------------------------------------------------------------------------------
TEST_SCORE = ("personal_test/{}_mean", "test/{}")
"""Figures on the common test set: the mean of clients' own models; where there are none, of the server's model."""
CLIENT_SCORE = ("personal/{}_mean", "clients/{}_mean")
"""Likewise the means over clients on their own test examples."""


def read_seeds(run: RunResults, *names: str, is_selected: bool = False) -> list[float]:
    """Read the first of these figures that a run has, of its last or of its selected round; NaN if it is not finite."""
    figures = run.selected["figures"] if is_selected else run.final
    if (name := next((name for name in names if name in figures), None)) is None:
        hint = "Hold some out: data.client_test_fraction of each client's, or data.test_fraction of all."
        raise InputError(f"{run.directory}: it has no {' and no '.join(names)}. {hint}")
    return [math.nan if value is None else value for value in figures[name]["seeds"]]


def requested_metrics(figures: Iterable[str]) -> list[str]:
    """List the metrics besides the main score, in the order of `engine.METRICS`, by the names of figures or columns."""
    found = {name.rpartition("/")[2] for name in figures}
    main = engine.main_score(found)
    return [name for name in engine.METRICS if found & {name, f"{name}_mean"} and name != main]


def client_scores(runs: Iterable[RunResults], kind: str, score: str) -> dict[str, dict[int, float]]:
    """Collect {client: {seed: score}} after the last round, without newcomers and clients without test examples.

    Where domains are left out in turn, a client's score is the mean over the runs that it takes part in.

    Args:
        runs: the runs of one row.
        kind: "clients" (the server's model), "personal" or "personal_test".
        score: "accuracy", "dice", or a requested metric.
    """
    column = score if kind == "clients" else f"{kind}_{score}"
    values: dict[str, dict[int, list[float]]] = {}
    for run in runs:
        for row in run.clients:
            if row["is_newcomer"] == "False" and row.get(column):
                values.setdefault(row["client"], {}).setdefault(int(row["seed"]), []).append(float(row[column]))
    return {client: {s: float(np.mean(v)) for s, v in seeds.items()} for client, seeds in values.items()}

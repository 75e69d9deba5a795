"""What one run leaves in its directory, from the first file to the summary."""

import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np

from fedjax_het import engine
from fedjax_het.data import Federation
from fedjax_het.engine import Evaluation, RunCost
from fedjax_het.types import PyTree, State

from .. import trackers
from ..configuration.settings import Settings
from ..distributed.collectives import ALONE, Processes
from ..runs import diagnostics_log, json_files, plots, records, run_files
from ..runs.run_directory import RunDirectory, run_identity

WRITTEN = (
    "config.json",
    "choices.json",
    "metrics.jsonl",
    "per_client.csv",
    "summary.json",
    "partition.json",
    "curves.png",
    "partition.png",
    "checkpoints",
)


class RunRecorder:
    """The files of one run, of whose seeds a simulation trains maybe others besides.

    All processes save and restore; the first one writes everything else.
    """

    def __init__(
        self,
        directory: RunDirectory,
        settings: Settings,
        choices: Mapping[str, Any],
        federation: Federation,
        facts: RunCost,
        *,
        beside: tuple[int, int] = (0, 1),
        processes: Processes = ALONE,
    ):
        """beside: (its place among, number of) runs that are trained side by side."""
        self.directory, self.settings, self._federation, self._facts = directory, settings, federation, facts
        self._processes, num_seeds = processes, settings["num_seeds"]
        self.seeds = [settings["seed"] + i for i in range(num_seeds)]
        place, self._is_alone = beside[0], beside[1] == 1
        self._part = slice(place * num_seeds, (place + 1) * num_seeds)
        self._log = records.MetricLines(directory / "metrics.jsonl")
        self._selected = records.MetricLines(directory / run_files.SELECTED)
        self._looks = (
            diagnostics_log.DiagnosticsLog(self.seeds, directory / diagnostics_log.NAME)
            if settings["diagnostics"]
            else None
        )
        if processes.is_first:
            # First of all files: a directory that holds others without it would be taken for someone else's.
            directory.write("config.json", settings)
            directory.write("choices.json", choices)
        about = {"config": run_identity(settings), "partition": federation.fingerprint}
        with processes.barrier(f"checkpoints {place}"):
            self._checkpoints = engine.Checkpoints(directory / "checkpoints", about, num_clients=federation.num_clients)

    def part(self, values: PyTree) -> PyTree:
        """This run's own of leaves [all seeds of all runs, ...]; alone, it has them as they are."""
        return values if self._is_alone else jax.tree.map(lambda x: x[self._part], values)

    # ---- where it goes on --------------------------------------------------------------------------------------------
    @property
    def done(self) -> int:
        """Rounds of the last checkpoint."""
        return self._checkpoints.latest() or 0

    def restore(self, like: State, done: int) -> State:
        """Raises InputError for a checkpoint that cannot be used. Later ones are dropped: they will come again."""
        state = self._checkpoints.restore(like, done)
        self._checkpoints.rewind(done)
        return state

    def rewind(self, done: int) -> float:
        """Drop lines that will come again. What the run has taken before, in seconds."""
        self.directory.write("partition.json", records.describe_partition(self._federation))
        if self._looks:
            self._looks.rewind(done)
        if self._selected.path.exists():
            self._selected.rewind(done)
        return max((line["seconds"] for line in self._log.rewind(done)), default=0.0)

    def follow(self, seconds: float) -> trackers.Trackers:
        """Show it where config.live says, in the first process; it has taken so many seconds before.

        Raises InputError for a writer that does not start.
        """
        names = trackers.names(self.settings["live"]) if self._processes.is_first else []
        return trackers.Trackers(
            names, trackers.TrackedRun(self.directory.path, self.settings, self.seeds, time.time() - seconds)
        )

    # ---- what it writes ----------------------------------------------------------------------------------------------
    def add(self, round: int, seconds: float, figures: Mapping[str, np.ndarray], evaluation: Evaluation) -> None:
        """Figures [runs] after a round that was evaluated; and its clients' rows, of the seeds that did best so far."""
        self._log.add(records.metric_records(round, self.seeds, seconds, self.part(dict(figures))))
        chosen = records.selected_figures(self._log.read())
        if chosen and round in chosen["rounds"]:
            best = [seed for seed, each in zip(self.seeds, chosen["rounds"], strict=True) if each == round]
            rows = records.client_rows(self.part(evaluation), self._federation, self.seeds)
            self._selected.add(records.selected_lines(round, best, rows))

    def add_look(self, round: int, found: engine.DiagnosticValues, seconds: float) -> None:
        self._looks.add(round, self.part(found), seconds)

    def save(self, round: int, state: State) -> None:
        self._checkpoints.save(round, self.part(state))

    def finish(self, evaluation: Evaluation) -> None:
        """Everything that is made of the whole run. The summary marks the run as complete; pictures come after it."""
        rows = records.per_client(self.part(evaluation), self._federation, self.seeds)
        json_files.write(self.directory / "per_client.csv", rows)
        self.directory.write("summary.json", records.summarize_run(self._log.read(), self._facts, self._federation))
        for name in PICTURES:
            (self.directory / name).unlink(missing_ok=True)
        draw_pictures(self.directory)


def draw_pictures(directory: RunDirectory) -> None:
    """Draw those pictures of a complete run that are not there, from its files. One that fails is a printed warning."""
    for name, picture in PICTURES.items():
        if not (path := directory / name).exists():
            with plots.try_drawing(path):
                json_files.write(path, partial(picture, directory))


def _curves(directory: RunDirectory, path: Path) -> None:
    plots.draw_curves(records.MetricLines(directory / "metrics.jsonl").read(), path)


def _partition(directory: RunDirectory, path: Path) -> None:
    """Who has which classes, of the clients that train."""
    clients = [client for client in directory.read("partition.json")["clients"] if not client["is_newcomer"]]
    counts = np.array([list(client["classes"].values()) for client in clients])
    plots.draw_partition(counts, [client["client"] for client in clients], list(clients[0]["classes"]), path)


PICTURES: Mapping[str, Callable[[RunDirectory, Path], None]] = {"curves.png": _curves, "partition.png": _partition}

"""The recorder of a run: all files of its directory, from config.json to the summary."""

import time
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np

from fedjax_het import engine
from fedjax_het.cli import trackers
from fedjax_het.cli.configuration.settings import Settings
from fedjax_het.cli.distributed.collectives import SINGLE, Processes
from fedjax_het.cli.runs import diagnostics_log, json_files, records
from fedjax_het.cli.runs.figures import Panel, View, learning_curves, partition_heat
from fedjax_het.cli.runs.phase_records import draw_phases
from fedjax_het.cli.runs.results import RunResults
from fedjax_het.cli.runs.run_directory import RunDirectory, is_continued_by, run_identity
from fedjax_het.cli.runs.run_files import METRICS, RESOLVED, SELECTED
from fedjax_het.data import Federation
from fedjax_het.engine import Evaluation, RunCost
from fedjax_het.types import PyTree, State

WRITTEN = (
    "config.json",
    RESOLVED,
    "metrics.jsonl",
    "per_client.csv",
    "summary.json",
    "partition.json",
    "curves.png",
    "partition.png",
    "checkpoints",
)


class RunRecorder:
    """The recorder of one run, which a simulation may train beside others.

    All processes save and restore checkpoints; the first one writes everything else.
    """

    def __init__(
        self,
        directory: RunDirectory,
        settings: Settings,
        resolved: Mapping[str, Any],
        federation: Federation,
        facts: RunCost,
        *,
        stop: engine.EarlyStopping | None = None,
        beside: tuple[int, int] = (0, 1),
        processes: Processes = SINGLE,
    ):
        """
        Args:
            directory: the run directory.
            settings: the resolved settings of the run.
            resolved: the record of resolved.json.
            federation: the data.
            facts: the costs of the run.
            stop: the rule that ends the run early, with the full name of its metric.
            beside: (its position among, number of) the runs that are trained in one program.
            processes: the processes that train together.
        """
        self.directory, self.settings, self._federation, self._facts = directory, settings, federation, facts
        self._processes, num_seeds = processes, settings["num_seeds"]
        self.stop, self._also = stop, (stop.metric,) if stop else ()
        self.seeds = [settings["seed"] + i for i in range(num_seeds)]
        place, self._is_alone = beside[0], beside[1] == 1
        self._part = slice(place * num_seeds, (place + 1) * num_seeds)
        self._log = records.MetricLines(directory / METRICS)
        self._selected = records.MetricLines(directory / SELECTED)
        self._validation: list[records.Json] = []  # the figures of all lines by which rounds are selected
        self._diagnostics = (
            diagnostics_log.DiagnosticsLog(self.seeds, directory / diagnostics_log.NAME)
            if settings["diagnostics"]
            else None
        )
        if processes.is_first:
            summary = directory.read("summary.json")
            if summary and summary["rounds"] < settings["rounds"]:
                (directory / "summary.json").unlink()  # it marks the run as complete
            # config.json is the first of all files: without it the others would count as those of another run.
            directory.write("config.json", settings)
            directory.write(RESOLVED, resolved)
        about = {"config": run_identity(settings), "partition": federation.fingerprint}
        with processes.barrier(f"checkpoints {place}"):
            self._checkpoints = engine.Checkpoints(
                directory / "checkpoints", about, num_clients=federation.num_clients, continues=is_continued_by
            )

    def part(self, values: PyTree) -> PyTree:
        """Return this run's part of leaves [all seeds of all runs, ...]."""
        return values if self._is_alone else jax.tree.map(lambda x: x[self._part], values)

    # ---- resuming ----------------------------------------------------------------------------------------------------
    @property
    def done(self) -> int:
        """The number of rounds of the last checkpoint."""
        return self._checkpoints.latest() or 0

    def restore(self, like: State, done: int) -> State:
        """Restore the checkpoint after `done` rounds and drop later ones.

        Raises:
            InputError: The checkpoint cannot be used.
        """
        state = self._checkpoints.restore(like, done)
        self._checkpoints.rewind(done)
        return state

    def rewind(self, done: int) -> float:
        """Drop the lines of later rounds, and of the last round of a run that continues; return the seconds before."""
        every = self.settings["evaluate_every"] if done < self.settings["rounds"] else 1
        self.directory.write("partition.json", records.describe_partition(self._federation))
        if self._diagnostics:
            self._diagnostics.rewind(done)
        if self._selected.path.exists():
            self._selected.rewind(done, every)
        lines = self._log.rewind(done, every)
        self._validation = [records.selection_line(line, *self._also) for line in lines]
        return max((line["seconds"] for line in lines), default=0.0)

    def start_trackers(self, seconds: float) -> trackers.Trackers:
        """Start the trackers of config.live, in the first process.

        Args:
            seconds: the seconds of training before.

        Raises:
            InputError: A tracker does not start.
        """
        names = trackers.names(self.settings["live"]) if self._processes.is_first else []
        return trackers.Trackers(
            names, trackers.TrackedRun(self.directory.path, self.settings, self.seeds, time.time() - seconds)
        )

    # ---- writing -----------------------------------------------------------------------------------------------------
    def add(self, round: int, seconds: float, figures: Mapping[str, np.ndarray], evaluation: Evaluation) -> None:
        """Write the figures [seeds] of an evaluated round, and the clients' rows of the seeds that are best so far."""
        lines = records.metric_records(round, self.seeds, seconds, self.part(dict(figures)))
        self._log.add(lines)
        self._validation += [records.selection_line(line, *self._also) for line in lines]
        rounds = {line["seed"]: line["round"] for line in records.improving_lines(self._validation)}
        if best := [seed for seed in self.seeds if rounds.get(seed) == round]:
            rows = records.client_rows(self.part(evaluation), self._federation.in_round(round - 1), self.seeds)
            clients = {seed: [row for row in rows if row["seed"] == seed] for seed in best}
            self._selected.add({"round": round, "seed": seed, "clients": clients[seed]} for seed in best)

    @property
    def end(self) -> int | None:
        """The round at which early stopping ends the run, in the first process; None if it goes on."""
        if self.stop is None:
            return None
        return records.find_end(self._validation, self.stop, len(self.seeds), self.settings["evaluate_every"])

    def add_snapshot(self, round: int, values: engine.DiagnosticValues, seconds: float) -> None:
        if self._diagnostics is not None:
            self._diagnostics.add(round, self.part(values), seconds)

    def save(self, round: int, state: State) -> None:
        self._checkpoints.save(round, self.part(state))

    def finish(self, evaluation: Evaluation, columns: Mapping[str, np.ndarray]) -> None:
        """Write the files of the complete run, without pictures. The summary, which is the last, marks it as complete.

        Args:
            evaluation: the evaluation of all runs after the last round.
            columns: further columns of per_client.csv, [seeds, clients].
        """
        lines = self._log.read()
        federation = self._federation.in_round(lines[-1]["round"] - 1)
        rows = records.client_csv(self.part(evaluation), federation, self.seeds, columns)
        json_files.write(self.directory / "per_client.csv", rows)
        self.directory.write("summary.json", records.summarize_run(lines, self._facts, self._federation))
        for name in (*PICTURES, PHASES):
            (self.directory / name).unlink(missing_ok=True)


def draw_pictures(directory: RunDirectory) -> None:
    """Draw the missing pictures of a complete run from its files. A failure is a printed warning."""
    from fedjax_het.cli.runs import plots  # slow to import

    results = RunResults(directory.path)
    pictures = dict(PICTURES) | ({PHASES: _view_phases} if "phases" in (results.partition or {}) else {})
    for name, make_view in pictures.items():
        if not (path := directory / name).exists():
            plots.write_drawing(path, lambda make: plots.draw_view(make(results)), make_view)


def _view_partition(results: RunResults) -> View:
    """Show the training examples by class of the clients that train."""
    clients = [client for client in results.partition_clients if not client["is_newcomer"]]
    heat = partition_heat(clients, "training examples")
    return View("", [Panel("", "client", "class", [heat], is_wide=True)])


def _starts(results: RunResults) -> list[float]:
    return (results.partition or {}).get("phases", {}).get("starts", [])[1:]


def _view_phases(results: RunResults) -> View:
    assert results.partition is not None
    return draw_phases(results.partition["phases"], results.lines)


PHASES = "phases.png"
"""The picture of a run whose data change with the round."""
PICTURES: Mapping[str, Callable[[RunResults], View]] = {
    "curves.png": lambda results: learning_curves(results.lines, _starts(results)),
    "partition.png": _view_partition,
}

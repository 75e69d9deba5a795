"""A simulation in its run directory: from the last checkpoint to the last round, stop by stop."""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from experiments import files, live, looks, outputs, plots, terminal
from experiments.processes import ALONE, Processes
from experiments.rundir import RunDirectory, identity
from experiments.settings import Settings
from fedjax_het import engine
from fedjax_het.data import Federation
from fedjax_het.types import State

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


class Training:
    """One run. All its processes train, evaluate and save; the first one writes everything else.

    At a stop: evaluate, write the metric lines, then the checkpoint, then show the lines where config.live says. A kill
    costs at most the rounds since the last checkpoint; lines later than it are dropped when the run resumes, and come
    out the same again.
    """

    def __init__(
        self,
        simulation: engine.Simulation,
        federation: Federation,
        settings: Settings,
        choices: Mapping[str, Any],
        directory: RunDirectory,
        processes: Processes = ALONE,
    ):
        self.simulation, self.federation, self.settings, self.directory = simulation, federation, settings, directory
        self.processes = processes
        self.rounds = settings["rounds"]
        self.every = settings["checkpoint_every"] or self.rounds
        self.seeds = [settings["seed"] + i for i in range(settings["num_seeds"])]
        self.log = outputs.MetricLines(directory / "metrics.jsonl")
        if processes.is_first:
            # First of all files: a directory that holds others without it would be taken for someone else's.
            directory.write("config.json", settings)
            directory.write("choices.json", choices)
        self.looks = None
        if settings["diagnostics"]:
            self.looks = looks.Looks(simulation, self.seeds, settings["diagnose_every"], directory / looks.NAME)
        about = {"config": identity(settings), "partition": federation.fingerprint}
        with processes.agreed("checkpoints"):
            self.checkpoints = engine.Checkpoints(directory / "checkpoints", about, num_clients=federation.num_clients)

    def run(self) -> None:
        """Raises InputError for a checkpoint that cannot be used, before anything is written, and for a writer of
        config.live that does not start."""
        state, done = self.simulation.start(), self.processes.firsts("done", self.checkpoints.latest() or 0)
        if done:
            with self.processes.agreed("restored"):
                state = self.checkpoints.restore(state, done)
        seconds = 0.0
        if self.processes.is_first:
            self.directory.write("partition.json", outputs.partition(self.federation))
            seconds = max((line["seconds"] for line in self.log.rewind(done)), default=0.0)
        if self.looks and self.processes.is_first:
            self.looks.rewind(done)
        with self.processes.agreed("live"):
            followed = self._followed(seconds)
        self._began = time.perf_counter() - seconds
        with followed:
            self._finish(self._train(state, done, followed))

    def _followed(self, seconds: float) -> live.Live:
        """Where the first process shows the run, which has taken so many seconds before, while it goes on."""
        names = live.names(self.settings["live"]) if self.processes.is_first else []
        return live.Live(names, live.Run(self.directory.path, self.settings, self.seeds, time.time() - seconds))

    def _train(self, state: State, done: int, followed: live.Live) -> State:
        if self.looks and not done:
            self.looks.look(state, 0, self.processes.is_first)
        also_every = self.settings["checkpoint_every"], self.settings["diagnose_every"] if self.looks else 0
        with terminal.tracking(done, self.rounds) as tracker:
            followed.catch_up(tracker.warn)
            for stop in self.simulation.stops(done, *also_every):
                state = self._advance(state, done, stop, tracker)
                followed.catch_up(tracker.warn)
                done = stop
        if self.looks:
            print(self.looks.cost())
        return state

    def _advance(self, state: State, done: int, stop: int, tracker: terminal.Tracker) -> State:
        before, dropped = time.perf_counter(), np.array(state.tally.nonfinite)
        state, rounds = self.simulation.advance(state, stop - done)
        figures = {
            "train/loss": np.asarray(rounds.loss)[:, -1],
            "num_reporting": np.asarray(rounds.num_reporting)[:, -1],
            "num_dropped": np.asarray(state.tally.nonfinite),
            **self._traffic(state),
        }
        a_round = (time.perf_counter() - before) / (stop - done)
        if num_dropped := int(np.sum(figures["num_dropped"] - dropped)):
            tracker.warn(f"{num_dropped} uploads of rounds {done + 1} to {stop} were not finite and were dropped")
        if self.simulation.is_evaluated(stop):
            figures |= engine.flat(self.simulation.evaluate(state))
            if self.processes.is_first:
                self.log.add(outputs.records(stop, self.seeds, time.perf_counter() - self._began, figures))
        tracker.show(stop, figures, a_round)
        if self.looks:
            self.looks.look(state, stop, self.processes.is_first)
        if stop == self.rounds or stop % self.every == 0:
            self.checkpoints.save(stop, state)
        return state

    def _traffic(self, state: State) -> dict[str, np.ndarray]:
        """Bytes that all clients have received and sent since the first round; what was dropped was sent, too."""
        num_uploads = np.asarray(state.tally.reports, np.int64) + np.asarray(state.tally.nonfinite)
        facts = self.simulation.facts
        return {"traffic/down": num_uploads * facts.bytes_down, "traffic/up": num_uploads * facts.bytes_up}

    def _finish(self, state: State) -> None:
        """Everything that is made of the whole run; the summary comes last, for it marks the run as complete."""
        evaluation = self.simulation.evaluate(state)
        if not self.processes.is_first:
            return
        lines, federation = self.log.read(), self.federation
        rows = outputs.per_client(evaluation, federation, self.seeds)
        files.write(self.directory / "per_client.csv", rows)
        files.write(self.directory / "curves.png", lambda path: plots.curves(lines, path))
        files.write(self.directory / "partition.png", lambda path: self._plot_partition(path))
        self.directory.write("summary.json", outputs.summary(lines, self.simulation.facts, federation))

    def _plot_partition(self, path: Path) -> None:
        federation = self.federation
        plots.partition(federation.class_counts, federation.client_names, federation.class_names, path)

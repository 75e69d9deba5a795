"""The search of a study: trials rung by rung, their ratings, and the runs that are compared in the end."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from .. import compare
from ..runs.results import RunResults
from ..sweep import grid
from ..sweep.grid import GridRun
from . import comparison, selection, trials
from .trials import Trial

TRIALS, REFITS = "trials", "refits"
"""The folders of a study's runs."""


class Command(NamedTuple):
    config: Path
    common: dict[str, str]  # settings of all runs
    own: dict[str, dict[str, str]]  # {method: settings of its runs}
    rungs: list[trials.Rung]
    seeds: int
    select: str
    scope: str
    seed: int
    has_oracle: bool
    workdir: Path
    max_together: int


class Study:
    """A study that trains the runs that are missing.

    Attributes:
        command: what was asked for.
        ratings: (trial, rounds, rating) of every trial of every rung so far; NaN for one that failed.
        is_whole: whether all runs so far are done.
    """

    def __init__(self, command: Command):
        self.command, self.is_whole = command, True
        self.ratings: list[tuple[Trial, int, float]] = []

    def search(self) -> tuple[dict[str, list[Trial]], dict[Trial, RunResults]]:
        """Train the trials, of which each rung keeps the best.

        Returns:
            ({method: the trials of the last rung from the best on}, their finished runs.)
        """
        command, is_halved = self.command, len(self.command.rungs) > 1
        best = {
            method: trials.draw_trials(method, command.rungs[0].trials, command.seed, {**command.common, **own})
            for method, own in command.own.items()
        }
        done: dict[Trial, RunResults] = {}
        for rung in command.rungs:
            left = [trial for of_method in best.values() for trial in of_method[: rung.trials]]
            extra = {"rounds": str(rung.rounds)} if is_halved else {}
            done = self._train(left, TRIALS, extra)
            rated = self.rate(done, command.select)
            best = self.sort(rated)
            self.ratings += [(trial, rung.rounds, rated.get(trial, math.nan)) for trial in left]
        return best, done

    def rate(self, done: Mapping[Trial, RunResults], select: str) -> dict[Trial, float]:
        """Rate finished trials by a rule, or by `selection.ORACLE`."""
        return {trial: selection.rate_trial(run, select, self.command.scope) for trial, run in done.items()}

    def sort(self, rated: Mapping[Trial, float]) -> dict[str, list[Trial]]:
        """The trials of each method from the best on; equal ones in their order, diverged ones last."""
        ordered = sorted(rated, key=lambda trial: -math.inf if math.isnan(rated[trial]) else rated[trial], reverse=True)
        return {method: [trial for trial in ordered if trial.method == method] for method in self.command.own}

    def refit(self, chosen: Sequence[tuple[Trial, bool]]) -> tuple[list[comparison.Row], list[int]]:
        """Train the chosen trials with seeds that no trial has seen.

        Args:
            chosen: (trial, whether it was selected on test examples).

        Returns:
            (The rows of the table, the seeds.)
        """
        command = self.command
        settings = self._make_run(chosen[0][0], {}).settings()
        first = settings["seed"] + settings["num_seeds"]
        seeds = {"seed": str(first), "num_seeds": str(command.seeds)}
        done = self._train([trial for trial, _ in chosen], REFITS, seeds)
        folder, runs = command.workdir / REFITS, [self._make_run(trial, seeds) for trial in done]
        compare.write_tables([grid.GridResult(run, folder / run.name, "was done", 0.0) for run in runs], folder)
        rows = [
            comparison.Row(trial.method, trial.text, selection.read_score(done[trial], command.scope), is_bound)
            for trial, is_bound in chosen
            if trial in done
        ]
        return rows, list(range(first, first + command.seeds))

    def _make_run(self, trial: Trial, extra: Mapping[str, str]) -> GridRun:
        own = {"algorithm.name": trial.method, **self.command.own[trial.method], **dict(trial.values), **extra}
        return GridRun(self.command.config, self.command.common, own)

    def _train(self, some: Sequence[Trial], folder: str, extra: Mapping[str, str]) -> dict[Trial, RunResults]:
        """Train trials that are not complete; return the finished ones, in their order."""
        runs = {trial: self._make_run(trial, extra) for trial in some}
        workdir = self.command.workdir / folder
        grid.check_runs(list(runs.values()), workdir)
        results = grid.run_grid(list(runs.values()), workdir, self.command.max_together)
        finished = {each.run.name: RunResults(each.directory) for each in results if each.is_done}
        self.is_whole &= len(finished) == len(runs)
        return {trial: finished[run.name] for trial, run in runs.items() if run.name in finished}

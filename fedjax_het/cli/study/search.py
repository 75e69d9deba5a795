"""The search of a study: trials rung by rung, their ratings, and the runs that are compared in the end."""

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from fedjax_het.cli.configuration.config_files import Config
from fedjax_het.cli.runs.results import RunResults
from fedjax_het.cli.study import selection, trials
from fedjax_het.cli.study.trials import Trial
from fedjax_het.cli.sweep import grid, training
from fedjax_het.cli.sweep.grid import GridRun
from fedjax_het.cli.sweep.training import GridResult
from fedjax_het.cli.sweep.worker import Workers

TRIALS, REFITS = "trials", "refits"
"""The folders of a study's runs."""


class Command(NamedTuple):
    config: Config
    common: dict[str, str]  # settings of all runs
    own: dict[str, dict[str, str]]  # {method: settings of its runs}
    rungs: list[trials.Rung]
    seeds: int
    select: str
    scope: str
    trials: Mapping[str, Sequence[Trial]]  # those of each method
    has_oracle: bool
    workdir: Path
    workers: Workers


class Study:
    """A study that trains the runs that are missing.

    Attributes:
        command: the arguments of the command.
        ratings: (trial, rounds, rating) of every trial of every rung so far; NaN for one that failed.
        is_whole: whether all runs so far are done.
    """

    def __init__(self, command: Command):
        self.command, self.is_whole = command, True
        self.ratings: list[tuple[Trial, int, float]] = []

    def search(self) -> tuple[dict[str, list[Trial]], dict[Trial, GridResult]]:
        """Train the trials; each rung keeps the best.

        Returns:
            ({method: the trials of the last rung from the best on, without those that failed or diverged},
            their finished runs.)
        """
        command, is_halved = self.command, len(self.command.rungs) > 1
        best = {method: list(tried) for method, tried in command.trials.items()}
        done: dict[Trial, GridResult] = {}
        for rung in command.rungs:
            left = [trial for tried in best.values() for trial in tried[: rung.trials]]
            extra = {"rounds": str(rung.rounds)} if is_halved else {}
            done = self._train(left, TRIALS, extra)
            rated = self.rate(done, command.select)
            best = self.sort(rated)
            self.ratings += [(trial, rung.rounds, rated.get(trial, math.nan)) for trial in left]
        return best, done

    def rate(self, done: Mapping[Trial, GridResult], select: str) -> dict[Trial, float]:
        """Rate finished trials by a rule, or by `selection.ORACLE`."""
        runs = {trial: RunResults(result.directory) for trial, result in done.items()}
        return {trial: selection.rate_trial(run, select, self.command.scope) for trial, run in runs.items()}

    def sort(self, rated: Mapping[Trial, float]) -> dict[str, list[Trial]]:
        """The trials of each method from the best on, without diverged ones; equal ones in their order."""
        known = [trial for trial, rating in rated.items() if not math.isnan(rating)]
        ordered = sorted(known, key=lambda trial: rated[trial], reverse=True)
        return {method: [trial for trial in ordered if trial.method == method] for method in self.command.own}

    def find_faults(self, best: Sequence[Trial], done: Mapping[Trial, GridResult]) -> Iterator[str]:
        """Describe why the search of a method may have missed better values.

        Args:
            best: The trials of the last rung from the best on.
            done: Their finished runs.
        """
        tried = self.command.trials[best[0].method] if best else ()
        if len(tried) < 2:
            return
        if all(selection.is_constant(RunResults(done[trial].directory), self.command.scope) for trial in best):
            yield (
                "no trial predicts validation examples better than the most frequent class does. Train for more "
                "rounds, or search other values."
            )
        else:
            yield from trials.find_values_at_ends(best[0], tried)

    def refit(self, chosen: Sequence[Trial]) -> tuple[dict[Trial, GridResult], list[int]]:
        """Train the chosen trials with seeds that no trial has seen.

        Returns:
            (The finished runs, the seeds.)
        """
        command = self.command
        settings = self._make_run(next(iter(command.trials.values()))[0], {}).settings()
        first = settings["seed"] + settings["num_seeds"]
        seeds = {"seed": str(first), "num_seeds": str(command.seeds)}
        done = self._train(chosen, REFITS, seeds)
        return done, list(range(first, first + command.seeds))

    def _make_run(self, trial: Trial, extra: Mapping[str, str]) -> GridRun:
        own = {"algorithm.name": trial.method, **self.command.own[trial.method], **dict(trial.values), **extra}
        return GridRun(self.command.config, self.command.common, own)

    def _train(self, trials: Sequence[Trial], folder: str, extra: Mapping[str, str]) -> dict[Trial, GridResult]:
        """Train trials that are not complete; return the finished ones, in their order."""
        runs = {trial: self._make_run(trial, extra) for trial in trials}
        workdir = self.command.workdir / folder
        grid.check_runs(list(runs.values()), workdir)
        results = training.run_grid(list(runs.values()), workdir, self.command.workers)
        finished = {result.run.name: result for result in results if result.is_done}
        self.is_whole &= len(finished) == len(runs)
        return {trial: finished[run.name] for trial, run in runs.items() if run.name in finished}

"""The runner of experiments: trains missing runs, and reports the results after each of them."""

import hashlib
import itertools
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import jax
import jax.numpy as jnp

from fedjax_het._internal.keys import make_key
from fedjax_het.cli.configuration import build
from fedjax_het.cli.runs.results import RunResults
from fedjax_het.cli.study.selection import rate_trial
from fedjax_het.cli.sweep import grid, training
from fedjax_het.cli.sweep.grid import GridRun
from fedjax_het.errors import InputError, nearest

from .spec import Entry, Experiment, Place, Settings


class Runner:
    """The runs of an experiment at one scale.

    Args:
        experiment: the experiment.
        scale: the name of the scale.
        common: the user's settings for all runs, which take precedence.
        paths: {name: path} of the data.
        workdir: the folder of all runs. Runs with the same config and common settings share a folder in it, so that
            experiments share the runs that they have in common.

    Attributes:
        trials: {choice: {(row, column): run}}.
        failed: {name of a run: error} of the runs that failed so far.

    Raises:
        InputError: The settings or a run directory cannot be used.
    """

    def __init__(self, experiment: Experiment, scale: str, common: Settings, paths: Mapping[str, str], workdir: Path):
        if key := next((key for settings in experiment.choices.values() for key in settings if key in common), None):
            chosen_from = ", ".join(experiment.choices)
            raise InputError(f"--config.{key}: it is chosen for each row, from {chosen_from}. Omit it.")
        self.experiment, self.scale = experiment, experiment.scales[scale]
        self.trials = {choice: experiment.make_runs(scale, common, paths, choice) for choice in experiment.choices}
        self.failed: dict[str, str] = {}
        self._has_trials = len(self.trials) > 1 or experiment.refit is None
        self._refits: dict[Place, GridRun] = {}
        runs = self._list_runs(self.places)
        self.folder = find_folder(runs[0], scale, workdir)
        complete = grid.check_runs(runs, self.folder)
        self._done = {name: RunResults(self.folder / name) for name in complete}
        _check_weights(runs)

    @property
    def places(self) -> list[Place]:
        """The rows of one column after another."""
        return list(next(iter(self.trials.values())))

    def train(self, write: Callable[[], object]) -> None:
        """Train the runs that are not complete.

        Args:
            write: called after each of them and at the end, also when the command is stopped.
        """
        rows = self.experiment.rows
        try:
            for group in [[row] for row in rows] if self.experiment.refit is not None else [list(rows)]:
                places = [place for place in self.places if place[0] in group]
                if self._has_trials:
                    self._train(self._list_runs(places), write)
                if self.experiment.refit is not None:
                    chosen = {place: choice for place in places if (choice := self._choose(place)) is not None}
                    runs = {p: self.experiment.make_refit(self.trials[choice][p]) for p, choice in chosen.items()}
                    self._refits |= runs
                    self._train(list(runs.values()), write)
        finally:
            write()

    def read_results(self) -> dict[Place, tuple[RunResults | None, str]]:
        """Return {place: (the run that is reported, its choice)} of the places whose runs have all ended.

        The run is None if it failed, or if no choice has a finite score on validation examples; then the choice is
        "diverged".
        """
        results: dict[Place, tuple[RunResults | None, str]] = {}
        for place in self.places:
            if self._has_trials and not all(self._has_ended(runs[place]) for runs in self.trials.values()):
                continue
            choice = self._choose(place)
            if choice is None:
                has_run = any(runs[place].name in self._done for runs in self.trials.values())
                results[place] = None, "diverged" if has_run else ""
            elif self.experiment.refit is None:
                results[place] = self._done[self.trials[choice][place].name], choice
            elif place in self._refits and self._has_ended(self._refits[place]):
                results[place] = self._done.get(self._refits[place].name), choice
        return results

    def read_runs(self) -> dict[Place, RunResults]:
        """Return {place: the run that is reported}, without those that failed or are not done."""
        return {place: run for place, (run, _) in self.read_results().items() if run}

    def read_status(self, place: Place) -> str:
        """Return "done", "not run" or the error of the run that is reported."""
        run, reason = self.read_results().get(place, (None, "not run"))
        errors = [self.failed[runs[place].name] for runs in self.trials.values() if runs[place].name in self.failed]
        return "done" if run else reason or errors[0]

    def read_entries(self) -> list[Entry]:
        """Read every result and its printed value; a printed average stands only beside one of the same columns."""
        experiment, entries, results = self.experiment, [], self.read_results()
        for name, row in itertools.product(experiment.measures, experiment.rows):
            cells = []
            for place in (place for place in self.places if place[0] == row):
                run, choice = results.get(place, (None, ""))
                seeds = experiment.measures[name](run, place[1]) if run else []
                cells.append(self._make_entry((name, *place), seeds, self.scale.is_compared, choice))
            entries += cells
            if experiment.average:
                paper = experiment.scales.get("paper")
                is_compared = self.scale.is_compared and paper and self.scale.columns.keys() == paper.columns.keys()
                average = average_columns(cells)
                entries.append(self._make_entry((name, row, experiment.average), average, bool(is_compared)))
        return entries

    def _make_entry(
        self, place: tuple[str, str, str], seeds: list[float], is_compared: bool, choice: str = ""
    ) -> Entry:
        """Make an entry; place: (measure, row, column)."""
        value, deviation = self.experiment.printed_value(*place) if is_compared else (None, None)
        return Entry(*place, value, seeds, deviation, choice)

    def _list_runs(self, places: Iterable[Place]) -> list[GridRun]:
        """List the trials of these places; those with the same settings once."""
        runs = [runs[place] for place in places for runs in self.trials.values()]
        return list({run.name: run for run in runs}.values())

    def _train(self, runs: Sequence[GridRun], write: Callable[[], object]) -> None:
        for result in training.run_grid(runs, self.folder):
            if result.is_done:
                self._done[result.run.name] = RunResults(result.directory)
            else:
                self.failed[result.run.name] = result.status
            if result.status != "was done":
                write()

    def _has_ended(self, run: GridRun) -> bool:
        return run.name in self._done or run.name in self.failed

    def _choose(self, place: Place) -> str | None:
        """Choose by the validation examples among the finished runs; None if none has a finite score."""
        if not self._has_trials:
            return next(iter(self.trials))
        done = {choice: self._done.get(runs[place].name) for choice, runs in self.trials.items()}
        finished = {choice: run for choice, run in done.items() if run}
        if len(self.trials) > 1:
            scores = {choice: rate_trial(run, "mean_client", "clients") for choice, run in finished.items()}
            finished = {choice: score for choice, score in scores.items() if not math.isnan(score)}
            return max(finished, key=lambda choice: finished[choice], default=None)
        return next(iter(finished), None)


def find_folder(run: GridRun, scale: str, workdir: Path) -> Path:
    """Return the folder of all runs with this config and these common settings, which experiments may share."""
    shared = json.dumps([run.config.name, dict(run.common)], sort_keys=True)
    return workdir / f"{scale}-{hashlib.sha256(shared.encode()).hexdigest()[:8]}"


def average_columns(entries: Sequence[Entry]) -> list[float]:
    """Average over columns, seed by seed; empty if a column has no result."""
    seeds = [entry.seeds for entry in entries]
    return [sum(values) / len(values) for values in zip(*seeds, strict=True)] if all(seeds) else []


def parse_paths(needed: Mapping[str, str], given: Sequence[str]) -> dict[str, str]:
    """Parse {name: path} from --data=PATH, if one is needed, or --data=NAME=PATH for each."""
    if len(needed) == 1 and len(given) == 1 and not given[0].startswith(f"{next(iter(needed))}="):
        paths = {next(iter(needed)): given[0]}
    else:
        paths = {name: path for name, _, path in (text.partition("=") for text in given)}
    for name, description in needed.items():
        if not paths.get(name):
            form = "PATH" if len(needed) == 1 else f"{name}=PATH"
            raise InputError(f"--data: this experiment reads {description}. Give --data={form}.")
    if extra := next((name for name in paths if name not in needed), None):
        raise InputError(f"--data={extra}: this experiment does not read it. {nearest(extra, needed)}")
    for name, path in paths.items():
        if not Path(path).exists():
            raise InputError(f"--data: '{path}' does not exist. Give the path of {needed[name]}.")
    return paths


def _check_weights(runs: Sequence[GridRun]) -> None:
    """Raise InputError for weights that cannot be read or do not fit their network."""
    tables = {json.dumps(table): table for run in runs if (table := run.settings()["model"]).get("pretrained")}
    for table in tables.values():
        model = build.build_model(table, num_classes=2)
        jax.eval_shape(model.init, make_key(0), jax.ShapeDtypeStruct((1, 224, 224, 3), jnp.float32))

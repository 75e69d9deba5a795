"""Contenders side by side in one work: a round in turn, so that the machine's drift meets them alike."""

import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from .measurement import Measurement, gap
from .peers import CONTENDERS, MATMUL, OURS
from .peers.process import PATIENCE, Failed, Process
from .workloads import Weights, Workload

_CHECKED = 200  # examples whose loss is compared


@dataclass(frozen=True, kw_only=True)
class BenchmarkRules:
    rounds: int = 7
    warmup: int = 2
    cores: int
    layout: str = ""
    conv: str = "auto"
    precision: str = "float32"
    patience: float = PATIENCE  # seconds for one answer
    is_rated: bool = True  # whether the machine's matmul rate is measured too
    pythons: Mapping[str, str] = field(default_factory=dict)  # the interpreter of a contender, where it is not this one


class Benchmark:
    """One work. The matmul rate of the machine is measured among the contenders, as if it were one."""

    def __init__(
        self,
        work: Workload,
        peers: Sequence[str],
        rules: BenchmarkRules,
        say: Callable[[str], None] = lambda text: None,
    ):
        """say: takes what there is to tell, piece by piece."""
        self.work, self.rules, self._say = work, rules, say
        yardstick = (MATMUL,) if rules.is_rated else ()
        self.standings = {name: Measurement(name) for name in (OURS, *yardstick, *peers)}
        self._processes: dict[str, Process] = {}
        self._reference: tuple[np.ndarray, float] | None = None

    def run(self) -> dict[str, Measurement]:
        """Every contender's standing; one that is missing, crashes or falls silent does not keep the others."""
        with tempfile.TemporaryDirectory() as directory:
            try:
                self._hold(Path(directory))
            finally:
                for process in self._processes.values():
                    process.end()
        return self.standings

    def _hold(self, directory: Path) -> None:
        self._say(f"{self.work.name} ready:")
        for name in self.standings:
            self._attempt(name, self._begin, directory)
        self._say("\n")
        num = self.rules.warmup + self.rules.rounds
        for number in range(num):
            self._say(f"{self.work.name} round {number + 1}/{num}:")
            for name in list(self._processes):
                self._attempt(name, self._round, number, directory)
            self._say("\n")
        for name in list(self._processes):
            self._attempt(name, self._end)

    def _attempt(self, name: str, action: Callable, *arguments) -> None:
        try:
            action(self.standings[name], *arguments)
        except Failed as failure:
            self.standings[name].crashed = str(failure)
            self._say(f" {name} crashed")
            self._processes.pop(name).end()

    def _begin(self, standing: Measurement, directory: Path) -> None:
        name, rules = standing.contender, self.rules
        sizes = [f"--clients={self.work.num_clients}", f"--examples={self.work.num_examples}"]
        chosen = {"cores": rules.cores, "layout": rules.layout, "conv": rules.conv, "precision": rules.precision}
        arguments = [self.work.base, *(f"--{option}={value}" for option, value in chosen.items()), *sizes]
        process = Process(name, arguments, rules.pythons.get(name, sys.executable), directory, rules.patience)
        self._processes[name] = process
        greeting = process.greeting()
        if absent := greeting.get("missing"):
            standing.skipped = f"{' and '.join(absent)} not installed: {CONTENDERS[name].install}"
        else:
            standing.skipped = greeting.get("unusable", "")
        if standing.skipped:
            self._processes.pop(name).end()
            return
        standing.ready_seconds, standing.versions = greeting["seconds"], greeting["versions"]
        self._say(f" {name} ({standing.ready_seconds:.1f} s)")

    def _round(self, standing: Measurement, number: int, directory: Path) -> None:
        process = self._processes[standing.contender]
        seconds = process.ask("round")["seconds"]
        (standing.warmup if number < self.rules.warmup else standing.seconds).append(seconds)
        self._say(f" {standing.contender} {seconds:.3f}")
        if number == 0 and standing.contender != MATMUL:
            file = directory / f"{standing.contender}.npz"
            process.ask("weights", str(file))
            self._compare(standing, file)

    def _compare(self, standing: Measurement, file: Path) -> None:
        with np.load(file) as held:
            weights = [held[f"arr_{i}"] for i in range(len(held.files))]
        examples = self.work.examples()
        loss = self.work.loss(weights, examples.inputs[:_CHECKED], examples.labels[:_CHECKED])
        update = _update(weights, self.work.initial())
        if standing.contender == OURS:
            self._reference = update, loss
        elif self._reference is not None:
            standing.gap = gap(update, loss, *self._reference)

    def _end(self, standing: Measurement) -> None:
        process = self._processes[standing.contender]
        answer = process.ask("memory")
        standing.peak_rss_mb, standing.facts = answer["peak_rss_mb"], answer.get("facts", {})


def _update(weights: Weights, initial: Weights) -> np.ndarray:
    return np.concatenate([(new - old).ravel() for new, old in zip(weights, initial, strict=True)])

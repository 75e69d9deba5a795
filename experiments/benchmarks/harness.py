"""The benchmark and the measurements of one workload; contenders take turns, so that drift affects all alike."""

import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np

from .peers import CONTENDERS, MATMUL, OURS
from .peers.process import ContenderError, ContenderProcess
from .workloads import Workload

_NUM_COMPARED = 200  # examples for the comparison of losses


class Discrepancy(NamedTuple):
    """Relative difference between a contender and fedjax_het after the first round.

    The norm of the update and the loss show whether both did the same work. The updates themselves show less: where
    rounding moves the input of a ReLU or a maximum across its kink, two float32 programs differ by a few per cent, and
    float64 differs from both.
    """

    norm: float
    loss: float
    update: float

    @property
    def is_small(self) -> bool:
        return self.norm <= 1e-3 and self.loss <= 1e-3 and self.update <= 5e-2


def measure_discrepancy(update: np.ndarray, loss: float, our_update: np.ndarray, our_loss: float) -> Discrepancy:
    norm, ours, difference = (float(np.linalg.norm(array)) for array in (update, our_update, update - our_update))
    return Discrepancy(abs(norm / ours - 1), abs(loss / our_loss - 1), difference / ours)


@dataclass
class Measurement:
    """Measurements of one contender."""

    contender: str
    ready_seconds: float = 0.0
    cached_startup_seconds: float | None = None  # of a second process, with the compiled programs of the first
    warmup: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)  # of the timed rounds
    peak_rss_mb: float = 0.0
    versions: dict[str, str] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)  # at the end: peak device memory, seconds to compile
    gap: Discrepancy | None = None
    skipped: str = ""  # the reason why it does not take part; empty if it does
    crashed: str = ""  # the end of its output, if it crashed

    @property
    def is_timed(self) -> bool:
        return bool(self.seconds) and not self.crashed

    @property
    def is_comparable(self) -> bool:
        """Whether its first round had the result of fedjax_het; true if fedjax_het has no result to compare with."""
        return self.gap is None or self.gap.is_small

    @property
    def median(self) -> float:
        return median(self.seconds)

    @property
    def startup_seconds(self) -> float:
        """Seconds until it was ready, and the excess of its first round, in which some compile or connect."""
        return self.add_excess(self.ready_seconds, [*self.warmup, *self.seconds][0])

    def add_excess(self, ready_seconds: float, first_round: float) -> float:
        """The seconds until a process was ready, and the excess of its first round over the median."""
        return ready_seconds + max(0.0, first_round - self.median)


@dataclass(frozen=True, kw_only=True)
class BenchmarkRules:
    rounds: int = 7
    warmup: int = 2
    cores: int
    layout: str = ""
    precision: str = "float32"
    is_rated: bool = True  # whether the machine's matrix-product rate is measured, too
    pythons: Mapping[str, str] = field(default_factory=dict)  # the interpreter of a contender, where it is not this one


class Benchmark:
    """One workload and its contenders; the machine's matrix-product rate is measured among them."""

    def __init__(
        self,
        work: Workload,
        peers: Sequence[str],
        rules: BenchmarkRules,
        report: Callable[[str], None] = lambda text: None,
    ):
        """report: called with each piece of progress text."""
        self.work, self.rules, self._report = work, rules, report
        yardstick = (MATMUL,) if rules.is_rated else ()
        self.measurements = {name: Measurement(name) for name in (OURS, *yardstick, *peers)}
        self._processes: dict[str, ContenderProcess] = {}
        self._reference: tuple[np.ndarray, float] | None = None

    def run(self) -> dict[str, Measurement]:
        """Measure every contender; one that is missing, crashes or stops answering does not affect the others."""
        with tempfile.TemporaryDirectory() as directory:
            try:
                self._run_rounds(Path(directory))
            finally:
                for process in self._processes.values():
                    process.end()
        return self.measurements

    def _run_rounds(self, directory: Path) -> None:
        self._report(f"{self.work.name} ready:")
        for name in self.measurements:
            self._call(name, self._start_contender, directory)
        self._report("\n")
        num = self.rules.warmup + self.rules.rounds
        for number in range(num):
            self._report(f"{self.work.name} round {number + 1}/{num}:")
            for name in list(self._processes):
                self._call(name, self._time_round, number, directory)
            self._report("\n")
        for name in list(self._processes):
            self._call(name, self._measure_memory)
        if OURS in self._processes:
            self._processes.pop(OURS).end()
            self._call(OURS, self._time_cached_start, directory)

    def _call(self, name: str, action: Callable, *arguments) -> None:
        try:
            action(self.measurements[name], *arguments)
        except ContenderError as failure:
            self.measurements[name].crashed = str(failure)
            self._report(f" {name} crashed")
            self._processes.pop(name).end()

    def _start_process(self, name: str, directory: Path) -> ContenderProcess:
        rules = self.rules
        sizes = [f"--clients={self.work.num_clients}", f"--examples={self.work.num_examples}"]
        chosen = {"cores": rules.cores, "layout": rules.layout, "precision": rules.precision}
        arguments = [self.work.base, *(f"--{option}={value}" for option, value in chosen.items()), *sizes]
        process = ContenderProcess(name, arguments, rules.pythons.get(name, sys.executable), directory)
        self._processes[name] = process
        return process

    def _start_contender(self, measurement: Measurement, directory: Path) -> None:
        name = measurement.contender
        greeting = self._start_process(name, directory).read_greeting()
        if absent := greeting.get("missing"):
            measurement.skipped = f"{' and '.join(absent)} not installed: {CONTENDERS[name].install}"
        else:
            measurement.skipped = greeting.get("unusable", "")
        if measurement.skipped:
            self._processes.pop(name).end()
            return
        measurement.ready_seconds, measurement.versions = greeting["seconds"], greeting["versions"]
        self._report(f" {name} ({measurement.ready_seconds:.1f} s)")

    def _time_cached_start(self, measurement: Measurement, directory: Path) -> None:
        process = self._start_process(measurement.contender, directory)
        ready, first = process.read_greeting()["seconds"], process.ask("round")["seconds"]
        measurement.cached_startup_seconds = measurement.add_excess(ready, first)

    def _time_round(self, measurement: Measurement, number: int, directory: Path) -> None:
        process = self._processes[measurement.contender]
        seconds = process.ask("round")["seconds"]
        (measurement.warmup if number < self.rules.warmup else measurement.seconds).append(seconds)
        self._report(f" {measurement.contender} {seconds:.3f}")
        if number == 0 and measurement.contender != MATMUL:
            file = directory / f"{measurement.contender}.npz"
            process.ask("weights", str(file))
            self._compare(measurement, file)

    def _compare(self, measurement: Measurement, file: Path) -> None:
        with np.load(file) as arrays:
            weights = [arrays[f"arr_{i}"] for i in range(len(arrays.files))]
        examples = self.work.examples()
        loss = self.work.loss(weights, examples.inputs[:_NUM_COMPARED], examples.labels[:_NUM_COMPARED])
        pairs = zip(weights, self.work.initial(), strict=True)
        update = np.concatenate([(new - old).ravel() for new, old in pairs])
        if measurement.contender == OURS:
            self._reference = update, loss
        elif self._reference is not None:
            measurement.gap = measure_discrepancy(update, loss, *self._reference)

    def _measure_memory(self, measurement: Measurement) -> None:
        process = self._processes[measurement.contender]
        answer = process.ask("memory")
        measurement.peak_rss_mb, measurement.facts = answer["peak_rss_mb"], answer.get("facts", {})

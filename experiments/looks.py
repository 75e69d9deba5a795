"""diagnostics.jsonl: what diagnostics say of rounds to come, a line a look and seed."""

import time
from pathlib import Path

import jax

from experiments import outputs
from fedjax_het import engine
from fedjax_het.types import State

NAME = "diagnostics.jsonl"


class Looks:
    """The looks of one run: before the first round and every so often after it.

    A line is {"round": the rounds done before, "seed", "cohort": {"ids", "is_present"}, diagnostic: {quantity: value},
    "seconds": what this look took}.
    """

    def __init__(self, simulation: engine.Simulation, seeds: list[int], every: int, path: Path):
        self._simulation, self._seeds, self._every = simulation, seeds, every
        self._log, self._seconds = outputs.MetricLines(path), []

    def rewind(self, done: int) -> None:
        """Drop what a run that resumes after `done` rounds will say again."""
        self._log.rewind(done if done else -1)

    def look(self, state: State, done: int, is_writing: bool) -> None:
        """Where it is time for it."""
        if done % self._every or done == self._simulation.rounds:
            return
        begun = time.perf_counter()
        found = self._simulation.diagnose(state)
        self._seconds.append(time.perf_counter() - begun)
        lines = [
            {"round": done, "seed": seed, **jax.tree.map(lambda x, i=i: x[i], found), "seconds": self._seconds[-1]}
            for i, seed in enumerate(self._seeds)
        ]
        if is_writing:
            self._log.add(lines)

    def cost(self) -> str:
        """What diagnostics added to the run."""
        each = sum(self._seconds) / max(len(self._seconds), 1)
        compiling = self._simulation.diagnosis_seconds
        return f"diagnostics: {len(self._seconds)} looks of {each:.2f} s each, after {compiling:.1f} s of compiling"

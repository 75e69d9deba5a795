"""diagnostics.jsonl: what diagnostics say of rounds to come, a line a look and seed."""

import time
from pathlib import Path

import jax

from experiments import outputs
from fedjax_het import engine
from fedjax_het.types import State

NAME = "diagnostics.jsonl"


class Schedule:
    """When a simulation is looked at, before the first round and every so often after it, and what that takes."""

    def __init__(self, simulation: engine.Simulation, every: int):
        """every: so many rounds; 0 is never."""
        self.every, self._simulation, self._seconds = every, simulation, []

    def look(self, state: State, done: int) -> tuple[engine.Measured, float] | None:
        """(what is found, what it took), where it is time for it after `done` rounds."""
        if not self.every or done % self.every or done == self._simulation.rounds:
            return None
        begun = time.perf_counter()
        found = self._simulation.diagnose(state)
        self._seconds.append(time.perf_counter() - begun)
        return found, self._seconds[-1]

    def cost(self) -> str:
        """What diagnostics added to the run."""
        each = sum(self._seconds) / max(len(self._seconds), 1)
        compiling = self._simulation.diagnosis_seconds
        return f"diagnostics: {len(self._seconds)} looks of {each:.2f} s each, after {compiling:.1f} s of compiling"


class Looks:
    """What was seen of one run.

    A line is {"round": the rounds done before, "seed", "cohort": {"ids", "is_present"}, diagnostic: {quantity: value},
    "seconds": what this look took}.
    """

    def __init__(self, seeds: list[int], path: Path):
        self._seeds, self._log = seeds, outputs.MetricLines(path)

    def rewind(self, done: int) -> None:
        """Drop what a run that resumes after `done` rounds will say again."""
        self._log.rewind(done if done else -1)

    def add(self, done: int, found: engine.Measured, seconds: float) -> None:
        """A line a seed, leaves [seeds, ...]."""
        self._log.add(
            {"round": done, "seed": seed, **jax.tree.map(lambda x, i=i: x[i], found), "seconds": seconds}
            for i, seed in enumerate(self._seeds)
        )

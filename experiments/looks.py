"""diagnostics.jsonl: what diagnostics say of rounds to come, a line a look and seed; pictures in files of their own."""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from experiments import files, outputs, words
from fedjax_het import engine
from fedjax_het.diagnostics import DIAGNOSTICS, PICTURES
from fedjax_het.types import Named, State

NAME = "diagnostics.jsonl"
FOLDER = "looks"


class Looks:
    """The looks of one run: before the first round and every so often after it.

    A line is {"round": the rounds done before, "seed", "cohort": {"ids", "is_present"}, diagnostic: {quantity: value},
    "pictures": "looks/round_00010_seed_0.npz" where there are any, "seconds": what this look took}. What that file
    holds is told by `pictures`.
    """

    def __init__(self, simulation: engine.Simulation, seeds: list[int], every: int, path: Path):
        self._simulation, self._seeds, self._every = simulation, seeds, every
        self._log, self._seconds = outputs.MetricLines(path), []

    def rewind(self, done: int) -> None:
        """Drop what a run that resumes after `done` rounds will say again."""
        kept = {line.get("pictures") for line in self._log.rewind(done if done else -1)}
        folder = self._log.path.with_name(FOLDER)
        for file in folder.iterdir() if folder.is_dir() else ():
            if f"{FOLDER}/{file.name}" not in kept:
                file.unlink()

    def look(self, state: State, done: int, is_writing: bool) -> None:
        """Where it is time for it."""
        if done % self._every or done == self._simulation.rounds:
            return
        begun = time.perf_counter()
        found = self._simulation.diagnose(state)
        self._seconds.append(time.perf_counter() - begun)
        if is_writing:
            self._log.add(
                [self._line(done, seed, jax.tree.map(lambda x, i=i: x[i], found)) for i, seed in enumerate(self._seeds)]
            )

    def _line(self, done: int, seed: int, found: Named) -> outputs.Record:
        """Its pictures are on the disk before the line that speaks of them."""
        numbers = {name: part for name, part in found.items() if name not in PICTURES}
        line = {"round": done, "seed": seed, **numbers, "seconds": self._seconds[-1]}
        if numbers.keys() == found.keys():
            return line
        place = f"{FOLDER}/round_{done:05d}_seed_{seed}.npz"
        arrays = {
            f"{name}/{quantity}": values
            for name in PICTURES.keys() & found.keys()
            for quantity, values in found[name].items()
        }
        path = self._log.path.parent / place
        path.parent.mkdir(exist_ok=True)
        files.write(path, lambda file: _save(file, arrays))
        return line | {"pictures": place}

    def cost(self) -> str:
        """What diagnostics added to the run."""
        each = sum(self._seconds) / max(len(self._seconds), 1)
        compiling = self._simulation.diagnosis_seconds
        return f"diagnostics: {len(self._seconds)} looks of {each:.2f} s each, after {compiling:.1f} s of compiling"


def written(diagnostics: str) -> list[str]:
    """What a run with this setting leaves behind."""
    chosen = words.parse_names("diagnostics", diagnostics, DIAGNOSTICS)
    return [NAME] * bool(chosen) + [FOLDER] * bool(PICTURES.keys() & set(chosen))


def pictures(directory: Path, line: Mapping[str, Any]) -> dict[str, dict[str, np.ndarray]]:
    """{diagnostic: {quantity: array}} of the pictures that a line speaks of; {} where it speaks of none."""
    found: dict[str, dict[str, np.ndarray]] = {}
    if "pictures" in line:
        with np.load(directory / line["pictures"]) as arrays:
            for key in arrays.files:
                name, _, quantity = key.partition("/")
                found.setdefault(name, {})[quantity] = arrays[key]
    return found


def _save(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    with path.open("wb") as file:
        np.savez_compressed(file, **arrays)

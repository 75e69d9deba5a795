"""diagnostics.jsonl: what diagnostics say of rounds to come, a line a look and seed; pictures in files of their own."""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from fedjax_het import engine
from fedjax_het.diagnostics import DIAGNOSTICS, PICTURES
from fedjax_het.types import State

from . import json_files, records, setting_text

NAME = "diagnostics.jsonl"
FOLDER = "looks"


class DiagnosticsSchedule:
    """When a simulation is looked at, before the first round and every so often after it, and what that takes."""

    def __init__(self, simulation: engine.Simulation, every: int):
        """every: so many rounds; 0 is never."""
        self.every, self._simulation, self._seconds = every, simulation, []

    def look(self, state: State, done: int) -> tuple[engine.DiagnosticValues, float] | None:
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


class DiagnosticsLog:
    """What was seen of one run.

    A line is {"round": the rounds done before, "seed", "cohort": {"ids", "is_present"}, diagnostic: {quantity: value},
    "pictures": "looks/round_00010_seed_0.npz" where there are any, "seconds": what this look took}. What that file
    holds is told by `pictures`.
    """

    def __init__(self, seeds: list[int], path: Path):
        self._seeds, self._log = seeds, records.MetricLines(path)

    def rewind(self, done: int) -> None:
        """Drop what a run that resumes after `done` rounds will say again."""
        kept = {line.get("pictures") for line in self._log.rewind(done if done else -1)}
        folder = self._log.path.with_name(FOLDER)
        for file in folder.iterdir() if folder.is_dir() else ():
            if f"{FOLDER}/{file.name}" not in kept:
                file.unlink()

    def add(self, done: int, found: engine.DiagnosticValues, seconds: float) -> None:
        """A line a seed, of leaves [seeds, ...]. Its pictures are on the disk before the line that speaks of them."""
        lines = []
        for i, seed in enumerate(self._seeds):
            of_seed = jax.tree.map(lambda x, i=i: x[i], found)
            numbers = {name: part for name, part in of_seed.items() if name not in PICTURES}
            place = self._save_pictures(f"round_{done:05d}_seed_{seed}.npz", of_seed)
            lines.append({"round": done, "seed": seed, **numbers, **place, "seconds": seconds})
        self._log.add(lines)

    def _save_pictures(self, name: str, found: engine.DiagnosticValues) -> dict[str, str]:
        arrays = {
            f"{diagnostic}/{quantity}": values
            for diagnostic in PICTURES.keys() & found.keys()
            for quantity, values in found[diagnostic].items()
        }
        if not arrays:
            return {}
        path = self._log.path.with_name(FOLDER) / name
        path.parent.mkdir(exist_ok=True)
        json_files.write(path, lambda file: _save(file, arrays))
        return {"pictures": f"{FOLDER}/{name}"}


def diagnostics_files(diagnostics: str) -> list[str]:
    """What a run with this setting leaves behind."""
    chosen = setting_text.parse_names("diagnostics", diagnostics, DIAGNOSTICS)
    return [NAME] * bool(chosen) + [FOLDER] * bool(PICTURES.keys() & set(chosen))


def load_images(directory: Path, line: Mapping[str, Any]) -> dict[str, dict[str, np.ndarray]]:
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

"""The log of diagnostics, diagnostics.jsonl: one line per snapshot and seed, images in files of their own."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from fedjax_het import engine
from fedjax_het._internal.regular_files import open_regular
from fedjax_het.cli.runs import json_files, records, setting_text
from fedjax_het.cli.runs.run_files import DIAGNOSTICS as NAME
from fedjax_het.diagnostics import DIAGNOSTICS

FOLDER = "snapshots"


class DiagnosticsLog:
    """The diagnostics of one run.

    A line is {"round": the rounds done before, "seed", "cohort": {"ids", "is_present"}, diagnostic: {quantity: value},
    "pictures": "snapshots/round_00010_seed_0.npz" where there are images, "seconds": the duration of the snapshot}.
    `load_images` reads that file.
    """

    def __init__(self, seeds: list[int], path: Path):
        self._seeds, self._log = seeds, records.MetricLines(path)

    def rewind(self, done: int) -> None:
        """Drop what a run that resumes after `done` rounds will write again."""
        kept = {line.get("pictures") for line in self._log.rewind(done if done else -1)}
        for file in self._log.path.with_name(FOLDER).glob("*"):
            if f"{FOLDER}/{file.name}" not in kept:
                file.unlink()

    def add(self, done: int, values: engine.DiagnosticValues, seconds: float) -> None:
        """Write one line per seed of leaves [seeds, ...]; its images are on disk before the line that names them."""
        lines = []
        for i, seed in enumerate(self._seeds):
            seed_values = jax.tree.map(lambda x, i=i: x[i], values)
            numbers = {name: part for name, part in seed_values.items() if not _has_images(name)}
            images = self._save_images(f"round_{done:05d}_seed_{seed}.npz", seed_values)
            lines.append({"round": done, "seed": seed, **numbers, **images, "seconds": seconds})
        self._log.add(lines)

    def _save_images(self, name: str, values: engine.DiagnosticValues) -> dict[str, str]:
        arrays = {
            f"{diagnostic}/{quantity}": array
            for diagnostic in filter(_has_images, values)
            for quantity, array in values[diagnostic].items()
        }
        if not arrays:
            return {}
        path = self._log.path.with_name(FOLDER) / name
        path.parent.mkdir(exist_ok=True)
        json_files.write(path, lambda file: _save(file, arrays))
        return {"pictures": f"{FOLDER}/{name}"}


def diagnostics_files(diagnostics: str) -> list[str]:
    """Return the files and folders that a run with this setting writes."""
    chosen = setting_text.parse_names("diagnostics", diagnostics, DIAGNOSTICS)
    return [NAME] * bool(chosen) + [FOLDER] * any(map(_has_images, chosen))


def _has_images(diagnostic: str) -> bool:
    return diagnostic in DIAGNOSTICS and bool(DIAGNOSTICS[diagnostic].panels)


def load_images(directory: Path, line: Mapping[str, Any]) -> dict[str, dict[str, np.ndarray]]:
    """Load the images of a line: {diagnostic: {quantity: array}}; {} where it has none."""
    images: dict[str, dict[str, np.ndarray]] = {}
    if "pictures" in line:
        with open_regular(directory / line["pictures"]) as file, np.load(file) as arrays:
            for key in arrays.files:
                name, _, quantity = key.partition("/")
                images.setdefault(name, {})[quantity] = arrays[key]
    return images


def _save(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    with path.open("wb") as file:
        np.savez_compressed(file, allow_pickle=False, **arrays)

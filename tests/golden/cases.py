"""A golden case: a file of inputs and of the numbers that the authors' code made of them."""

import json
from collections.abc import Callable, Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from typing import NamedTuple

import numpy as np


class Comparison(NamedTuple):
    array: str
    error: float  # largest deviation, relative to the largest entry
    tolerance: float

    @property
    def is_ok(self) -> bool:
        return self.error <= self.tolerance  # False for NaN


class Case:
    """One file. Notes which arrays were read or compared, so that what nobody looked at can be listed."""

    def __init__(self, path: Path):
        self.path, self.family, self.name = path, path.parent.name, path.stem
        with np.load(path) as arrays:
            self._arrays = {name: arrays[name] for name in arrays.files}
        self.meta = json.loads(str(self._arrays["meta"])) if "meta" in self._arrays else {}
        self.excused: dict[str, str] = {}
        self._seen = {"meta", "provenance"}

    def __getitem__(self, name: str) -> np.ndarray:
        self._seen.add(name)
        return self._arrays[name]

    def __contains__(self, name: str) -> bool:
        return name in self._arrays

    def matching(self, pattern: str) -> list[str]:
        return [name for name in self._arrays if fnmatchcase(name, pattern)]

    def excuse(self, pattern: str, reason: str) -> None:
        """These arrays are left out on purpose."""
        for name in self.matching(pattern):
            self.excused[name] = reason
            self._seen.add(name)

    def compare(self, name: str, ours, tolerance: float = 1e-9, scale: float = 0.0) -> Comparison:
        """Hold our value against a stored array; `scale` is the size of the inputs where the result cancels out."""
        theirs, ours = np.asarray(self[name], np.float64), np.asarray(ours, np.float64)
        if theirs.shape != ours.shape:
            return Comparison(name, np.inf, tolerance)
        size = max(float(np.max(np.abs(theirs), initial=0.0)), scale)
        deviation = float(np.max(np.abs(theirs - ours), initial=0.0))
        return Comparison(name, deviation / size if size > 0 else deviation, tolerance)

    @property
    def unseen(self) -> list[str]:
        return sorted(self._arrays.keys() - self._seen)


Check = Callable[[Case], Iterator[Comparison]]
_CHECKS: list[tuple[str, str, Check]] = []


def covers(family: str, pattern: str) -> Callable[[Check], Check]:
    """This check holds every case of the family whose name matches."""

    def register(check: Check) -> Check:
        _CHECKS.append((family, pattern, check))
        return check

    return register


def check_of(case: Case) -> Check | None:
    for family, pattern, check in _CHECKS:
        if case.family == family and fnmatchcase(case.name, pattern):
            return check
    return None


def families() -> set[str]:
    return {family for family, _, _ in _CHECKS}


def find(root: Path) -> list[Path]:
    """Every case below a directory laid out as family/name.npz."""
    return sorted(root.glob("*/*.npz"))

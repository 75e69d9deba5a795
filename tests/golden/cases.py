"""A golden case: a file of inputs, and of the results of the authors' code for them."""

import importlib
import json
import pkgutil
from collections.abc import Callable, Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from typing import NamedTuple

import numpy as np

from tests.golden.metadata import Metadata

FLOAT64, FLOAT32 = 1e-9, 1e-5  # what the golden numbers' own README allows, relative


class Comparison(NamedTuple):
    """Our value and a stored array, or, where the array has a fault, the value that is correct there."""

    array: str
    error: float  # largest deviation, relative to the largest entry
    tolerance: float
    complaint: str = ""  # what is wrong besides the distance
    containment: str = ""  # the fault of the stored array, and the value that replaces it
    num_finite: int = 0  # entries that were compared, without those that are NaN on both sides

    @property
    def is_ok(self) -> bool:
        return self.error <= self.tolerance and not self.complaint  # False for NaN

    def __str__(self) -> str:
        return f"{self.array}: {self.complaint or f'{self.error:.2e} > {self.tolerance:.0e}'}"


class Case:
    """One file. It records which arrays were read or compared, so that unread ones are reported."""

    def __init__(self, path: Path):
        self.path, self.family, self.name = path, path.parent.name, path.stem
        with np.load(path) as arrays:
            self._arrays = {name: arrays[name] for name in arrays.files}
        self.meta = Metadata(json.loads(str(self._arrays["meta"])) if "meta" in self._arrays else {})
        self.excused: dict[str, str] = {}
        self._seen = {"meta", "provenance"}

    def __getitem__(self, name: str) -> np.ndarray:
        if name not in self._arrays:
            raise KeyError(f"there is no array '{name}'")
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

    def excuse_unread(self, pattern: str, reason: str) -> None:
        """Arrays of these that have not been read are left out on purpose."""
        for name in set(self.matching(pattern)) - self._seen:
            self.excuse(name, reason)

    def is_finite(self, name: str) -> bool:
        return bool(np.isfinite(self[name]).all())

    def compare(
        self,
        name: str,
        ours,
        tolerance: float | None = None,
        scale: float = 0.0,
        part: Callable[[np.ndarray], np.ndarray] = lambda array: array,
    ) -> Comparison:
        """Hold our value against a stored array.

        Args:
            name: The array's.
            ours: Our value, of the array's shape. It has to be NaN where the stored array is, and nowhere else; see
                `contain` for arrays that are NaN by a fault.
            tolerance: Allowed deviation; by the file's dtype unless given.
            scale: The size of the inputs, where the result cancels out.
            part: Takes the part of the stored array that ours stands for.
        """
        return self._held(name, ours, part(self[name]), tolerance, scale)

    def refute(
        self,
        name: str,
        ours,
        floor: float = 1e-6,
        part: Callable[[np.ndarray], np.ndarray] = lambda array: array,
    ) -> Comparison:
        """Our value has to differ from (a part of) an array that a known wrong implementation gives, by this much."""
        held = self._held(name, ours, part(self[name]), np.inf, 0.0)
        is_unlike = held.error > floor
        complaint = held.complaint or (
            "" if is_unlike else f"as the wrong implementation gives it, to {held.error:.0e}"
        )
        return held._replace(error=0.0, complaint=complaint)

    def contain(
        self, name: str, ours, expected, fault: str, held_to: str, tolerance: float | None = None, scale: float = 0.0
    ) -> Comparison:
        """Compare our value with the correct one, where the stored array has a fault of the code that made it.

        Args:
            name: The array's.
            ours: Our value.
            expected: The correct value: from other arrays of the file, or computed here without the package.
            fault: The fault of the stored array.
            held_to: A description of `expected`.
            tolerance: See `compare`.
            scale: See `compare`.
        """
        held = self._held(name, ours, expected, tolerance, scale)
        size, num_bad = self[name].size, int(np.sum(~np.isfinite(self[name])))
        stored = f"{num_bad} of {size} not finite" if num_bad else "finite"
        return held._replace(containment=f"{fault} ({stored}); ours is {held_to}")

    def _held(self, name: str, ours, theirs, tolerance: float | None, scale: float) -> Comparison:
        if tolerance is None:
            tolerance = FLOAT32 if str(self.meta.get("dtype", "")).startswith("float32") else FLOAT64
        theirs, ours = np.asarray(theirs, np.float64), np.asarray(ours, np.float64)
        if theirs.shape != ours.shape:
            return Comparison(name, np.inf, tolerance, f"theirs has shape {theirs.shape}, ours {ours.shape}")
        is_number = ~np.isnan(theirs)
        if not np.array_equal(is_number, ~np.isnan(ours)):
            counts = [int(np.sum(np.isnan(values))) for values in (theirs, ours)]
            complaint = f"{counts[0]} entries of theirs and {counts[1]} of ours are NaN, not at the same places"
            return Comparison(name, np.inf, tolerance, complaint)
        theirs, ours = theirs[is_number], ours[is_number]
        if not np.isfinite(theirs).all() or not np.isfinite(ours).all():
            return Comparison(name, np.inf, tolerance, "there are infinite entries")
        size = max(float(np.max(np.abs(theirs), initial=0.0)), scale)
        deviation = float(np.max(np.abs(theirs - ours), initial=0.0))
        return Comparison(name, deviation / size if size > 0 else deviation, tolerance, num_finite=theirs.size)

    @property
    def unread(self) -> list[str]:
        """The content of the file that no check has read."""
        file = f"{self.family}/{self.path.name}"
        keys = [f"meta key '{key}' of {file} is not read" for key in self.meta.unread]
        return keys + [f"array '{name}' of {file} is not read" for name in sorted(self._arrays.keys() - self._seen)]


def known(means, is_known) -> np.ndarray:
    """Means [..., *], NaN for those that do not exist: of classes without examples, say."""
    means, is_known = np.asarray(means, float), np.asarray(is_known)
    return np.where(is_known.reshape(*is_known.shape, *[1] * (means.ndim - is_known.ndim)), means, np.nan)


Check = Callable[[Case], Iterator[Comparison]]
_CHECKS: list[tuple[str, str, Check]] = []


def covers(family: str, pattern: str) -> Callable[[Check], Check]:
    """This check holds every case of the family whose name matches, unless a longer pattern does."""

    def register(check: Check) -> Check:
        _CHECKS.append((family, pattern, check))
        return check

    return register


def load_checks() -> None:
    """Import every family's file, which registers its checks."""
    for module in pkgutil.iter_modules([str(Path(__file__).parent)]):
        if module.name.startswith("family_"):
            importlib.import_module(f"tests.golden.{module.name}")


def check_of(case: Case) -> Check | None:
    fits = [(pattern, check) for family, pattern, check in _CHECKS if case.family == family]
    fits = [(len(pattern), check) for pattern, check in fits if fnmatchcase(case.name, pattern)]
    return max(fits, key=lambda fit: fit[0])[1] if fits else None


def patterns_of(family: str) -> list[str]:
    """The names that the family's checks take; none for a family that no check knows."""
    return [pattern for known, pattern, _ in _CHECKS if known == family]


def find_cases(root: Path) -> list[Path]:
    """Every case below a directory laid out as family/name.npz."""
    return sorted(root.glob("*/*.npz"))

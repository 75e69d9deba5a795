"""Patterns in time by which a new concept replaces an old one."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

_SMALLEST_SHARE = 1e-3  # smaller ones are 0, and those within this of 1 are 1, so that a sigmoid has an end
Elapsed = Int[np.ndarray, "*axes"]


class Pattern(NamedTuple):
    """How a concept replaces another.

    Args:
        share: Rounds since the start of a client's drift, also negative -> the share of the new concept.
        changes: The elapsed rounds at which the share may change.
    """

    share: Callable[[Elapsed], Float[np.ndarray, "*axes"]]
    changes: Sequence[int]


def switch() -> Pattern:
    """The share is 1 from the start on."""
    return Pattern(lambda elapsed: (elapsed >= 0).astype(float), (0,))


def ramp(width: int) -> Pattern:
    """The share is clip((t + 1) / width, 0, 1) after t rounds, so it rises for the first time at the start."""
    return Pattern(lambda elapsed: np.clip((elapsed + 1) / width, 0, 1), range(width))


def logistic(width: float) -> Pattern:
    """The share is 1 / (1 + exp(-4 t / width)) after t rounds, with half at the start; below 0.001 it is 0."""

    def share(elapsed: Elapsed) -> np.ndarray:
        exact = 1 / (1 + np.exp(np.clip(-4 * np.asarray(elapsed, float) / width, -50, 50)))
        return np.where(exact < _SMALLEST_SHARE, 0, np.where(exact > 1 - _SMALLEST_SHARE, 1, exact))

    reach = int(np.ceil(width * np.log(1 / _SMALLEST_SHARE) / 4)) + 1
    return Pattern(share, range(-reach, reach + 1))


def alternate(period: int, repeats: int) -> Pattern:
    """The share is 1 for `period` rounds, 0 for `period` rounds, and so on; the new concept comes `repeats` times."""

    def share(elapsed: Elapsed) -> np.ndarray:
        number = np.asarray(elapsed) // period
        return ((number >= 0) & (number < 2 * repeats) & (number % 2 == 0)).astype(float)

    return Pattern(share, [period * number for number in range(2 * repeats)])

"""Measurements of a contender, and the comparison of its first round with that of fedjax_het."""

from dataclasses import dataclass, field
from statistics import median
from typing import Any, NamedTuple

import numpy as np


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
    norm, ours, apart = (float(np.linalg.norm(each)) for each in (update, our_update, update - our_update))
    return Discrepancy(abs(norm / ours - 1), abs(loss / our_loss - 1), apart / ours)


@dataclass
class Measurement:
    """Measurements of one contender."""

    contender: str
    ready_seconds: float = 0.0
    warmup: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)  # of the timed rounds
    peak_rss_mb: float = 0.0
    versions: dict[str, str] = field(default_factory=dict)
    facts: dict[str, Any] = field(
        default_factory=dict
    )  # what the contender reports at the end: peak device memory, seconds to compile
    gap: Discrepancy | None = None
    skipped: str = ""  # why it does not take part; empty if it does
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
        first = [*self.warmup, *self.seconds][0]
        return self.ready_seconds + max(0.0, first - self.median)

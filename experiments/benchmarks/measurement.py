"""What was seen of a contender, and whether it computed what ours did."""

from dataclasses import dataclass, field
from statistics import median
from typing import Any, NamedTuple

import numpy as np


class Gap(NamedTuple):
    """How far a contender is from ours after the first round, relative to ours.

    Norm of the update and loss tell whether both did the same. The updates themselves tell less: where rounding puts a
    ReLU or a maximum on its other side, two float32 programs part by up to some per cent, and float64 from both.
    """

    norm: float
    loss: float
    update: float

    @property
    def is_small(self) -> bool:
        return self.norm <= 1e-3 and self.loss <= 1e-3 and self.update <= 5e-2


def gap(update: np.ndarray, loss: float, our_update: np.ndarray, our_loss: float) -> Gap:
    norm, ours, apart = (float(np.linalg.norm(each)) for each in (update, our_update, update - our_update))
    return Gap(abs(norm / ours - 1), abs(loss / our_loss - 1), apart / ours)


@dataclass
class Measurement:
    """What was seen of one contender."""

    contender: str
    ready_seconds: float = 0.0
    warmup: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)  # of the timed rounds
    peak_rss_mb: float = 0.0
    versions: dict[str, str] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)  # what the contender told of itself at the end
    gap: Gap | None = None
    skipped: str = ""  # why it does not take part
    crashed: str = ""  # the end of what it wrote

    @property
    def is_timed(self) -> bool:
        return bool(self.seconds) and not self.crashed

    @property
    def is_comparable(self) -> bool:
        """Whether its first round had the same result as ours; unknown, where ours has none, counts as yes."""
        return self.gap is None or self.gap.is_small

    @property
    def median(self) -> float:
        return median(self.seconds)

    @property
    def startup_seconds(self) -> float:
        """Until it was ready, and what its first round took longer than others: some compile or connect only then."""
        first = [*self.warmup, *self.seconds][0]
        return self.ready_seconds + max(0.0, first - self.median)

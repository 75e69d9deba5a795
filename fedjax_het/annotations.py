"""Annotations of the arguments of factories, which configs and studies read."""

from typing import NamedTuple


class OfRun(NamedTuple):
    """Annotation of a factory argument whose default in a config is a setting of the run.

    rounds: Annotated[int, OfRun("rounds")] = 40
    """

    setting: str


class Uniform(NamedTuple):
    """Annotation of an argument that a study searches: uniform distribution between two bounds."""

    low: float
    high: float

    def draw(self, share: float) -> float:
        """Return the quantile of level `share`, from 0 to 1."""
        return self.low + share * (self.high - self.low)


class LogUniform(NamedTuple):
    """Annotation of an argument that a study searches: log-uniform distribution between two bounds."""

    low: float
    high: float

    def draw(self, share: float) -> float:
        """Return the quantile of level `share`, from 0 to 1."""
        return self.low * (self.high / self.low) ** share

"""Annotations of the arguments of factories: marks that configs and studies read, and how to read annotations."""

import types
import typing
from typing import Any, NamedTuple, TypeVar

Mark = TypeVar("Mark")


def alternatives(kind: Any) -> tuple[Any, ...]:
    """The members of a union, including those of nested unions; of any other annotation, itself."""
    is_union = typing.get_origin(kind) in (typing.Union, types.UnionType)
    return tuple(inner for member in typing.get_args(kind) for inner in alternatives(member)) if is_union else (kind,)


def find_mark(kind: Any, *mark_types: type[Mark]) -> Mark | None:
    """The first mark of one of these types in `Annotated[..., marks]`."""
    return next((mark for mark in getattr(kind, "__metadata__", ()) if isinstance(mark, mark_types)), None)


class RunSetting(NamedTuple):
    """Annotation of a factory argument whose default in a config is a setting of the run.

    rounds: Annotated[int, RunSetting("rounds")] = 40
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

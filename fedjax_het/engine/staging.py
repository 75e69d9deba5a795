"""Some clients' examples, copied out of everyone's into a small table of their own, on the host."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from typing import Any

import numpy as np

from fedjax_het.types import Examples, Rows


def taken(rows: Rows, ids: np.ndarray, is_here: np.ndarray) -> Rows:
    """The rows of these clients; those that are not here have nothing."""
    return Rows(rows.index[ids], np.where(is_here, rows.count[ids], 0).astype(np.int32))


def compact(examples: Examples, tables: Sequence[Rows], places: int) -> tuple[Examples, tuple[Rows, ...]]:
    """(the examples that these tables name, one after the other in so many places; the tables, now into those).

    Tables are [..., capacity]. Place 0 is the first of all examples, where padding entries point as they did before, so
    that even what is masked reads the same numbers. What nothing points to may be anything.
    """
    is_entry = [np.arange(rows.index.shape[-1]) < np.asarray(rows.count)[..., None] for rows in tables]
    positions, moved = [np.zeros(1, np.int32)], []
    for rows, entry in zip(tables, is_entry, strict=True):
        index, begun = np.zeros_like(rows.index), sum(map(len, positions))
        positions.append(rows.index[entry])
        index[entry] = np.arange(begun, begun + len(positions[-1]))
        moved.append(rows._replace(index=index))
    positions = np.concatenate(positions)
    return Examples(*(_gathered(values, positions, places) for values in examples)), tuple(moved)


def _gathered(values: np.ndarray, positions: np.ndarray, places: int) -> np.ndarray:
    gathered = np.empty((places, *values.shape[1:]), values.dtype)
    # "clip" writes straight into place, where "raise" would go through a buffer; no position is out of range.
    np.take(values, positions, axis=0, out=gathered[: len(positions)], mode="clip")
    return gathered


def in_advance(executor: Executor, make: Callable[[Any], Any], things: Sequence[Any]) -> Iterator[Any]:
    """make(thing) for one thing after the other, each made while the one before it is in use."""
    coming = executor.submit(make, things[0])
    for following in [*things[1:], None]:
        made = coming.result()
        if following is not None:
            coming = executor.submit(make, following)
        yield made

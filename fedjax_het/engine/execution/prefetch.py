"""Some clients' examples, copied out of everyone's into a small table of their own, on the host."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from functools import cached_property
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import ShapeDtypeStruct

from fedjax_het.engine.execution.trace import TracedRound
from fedjax_het.engine.parallel.compilation import compile_program
from fedjax_het.engine.round.client_step import Cohort
from fedjax_het.types import Array, Examples, Key, Rows


def select_rows(rows: Rows, ids: np.ndarray, is_here: np.ndarray) -> Rows:
    """The rows of these clients; those that are not here have nothing."""
    return Rows(rows.index[ids], np.where(is_here, rows.count[ids], 0).astype(np.int32))


def compact_examples(examples: Examples, tables: Sequence[Rows], places: int) -> tuple[Examples, tuple[Rows, ...]]:
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
    return Examples(*(_gather(values, positions, places) for values in examples)), tuple(moved)


def _gather(values: np.ndarray, positions: np.ndarray, places: int) -> np.ndarray:
    gathered = np.empty((places, *values.shape[1:]), values.dtype)
    # "clip" writes straight into place, where "raise" would go through a buffer; no position is out of range.
    np.take(values, positions, axis=0, out=gathered[: len(positions)], mode="clip")
    return gathered


def prefetch(executor: Executor, make: Callable[[Any], Any], things: Sequence[Any]) -> Iterator[Any]:
    """make(thing) for one thing after the other, each made while the one before it is in use."""
    coming = executor.submit(make, things[0])
    for following in [*things[1:], None]:
        made = coming.result()
        if following is not None:
            coming = executor.submit(make, following)
        yield made


class CohortBatch(NamedTuple):
    """A round's cohort and which examples are whose. Leaves [seeds, slots, ...]."""

    cohort: Cohort
    train: Rows
    valid: Rows


PrefetchedCohort = tuple[CohortBatch, Examples]
"""What a round sees, on the device; the seeds share the examples."""


class ExamplePrefetcher:
    """What there is to see: all examples, on the device, or those that are named, copied there as they are needed."""

    def __init__(self, traced: TracedRound, is_streaming: bool):
        """Compile the drawing of cohorts."""
        self.is_streaming, self._traced, spec = is_streaming, traced, traced.spec
        self._layout, self._data = traced.layout, spec.federation.data
        self.places = 1 + spec.most_examples  # for any round's, and one for padding
        self._keys = self._layout.replicate(spec.keys())
        self._draw = compile_program(
            spec.map_over_runs(self._draws, (0, None)), self._layout, self._keys, self._number(0)
        )

    def draw_cohorts(self, first: int) -> list[Cohort]:
        """In numpy: those of as many rounds as there are in a block, from `first` on, and of one more."""
        drawn = self._draw(self._keys, self._number(first))
        ids, is_here = (np.asarray(x).swapaxes(0, 1) for x in drawn)
        return [Cohort(*each) for each in zip(ids, is_here, strict=True)]

    def prefetch(self, cohort: Cohort) -> PrefetchedCohort:
        """What this cohort sees."""
        tables = tuple(select_rows(part, *cohort) for part in (self._data.train, self._data.valid))
        examples, (train, valid) = self.seen(tables, self.places)
        return CohortBatch(self._layout.replicate(cohort), train, valid), examples

    def seen(self, tables: tuple[Rows, ...], places: int) -> tuple[Examples, tuple[Rows, ...]]:
        """(examples, tables into them), on the device.   places: enough for all that the tables name, and one more."""
        if not self.is_streaming:
            return self._everything, self._layout.replicate(tables)
        return self._layout.replicate(compact_examples(self._data.examples, tables, places))

    @property
    def shapes(self) -> PrefetchedCohort:
        places = (self._traced.spec.num_runs, self._layout.round_up(self._traced.spec.cohort_size))

        def taken(part: Rows) -> Rows:
            return jax.tree.map(lambda x: ShapeDtypeStruct((*places, *x.shape[1:]), np.int32), part)

        cohort = Cohort(ShapeDtypeStruct(places, np.int32), ShapeDtypeStruct(places, bool))
        window = CohortBatch(cohort, taken(self._data.train), taken(self._data.valid))
        return window, self.shapes_of_examples(self.places)

    def shapes_of_examples(self, places: int) -> Examples:
        num = places if self.is_streaming else len(self._data.examples.labels)
        return Examples(*(ShapeDtypeStruct((num, *x.shape[1:]), x.dtype) for x in self._data.examples))

    @cached_property
    def _everything(self) -> Examples:
        return self._layout.replicate(self._data.examples)

    def release(self) -> None:
        self.__dict__.pop("_everything", None)

    def _number(self, value: int) -> Array:
        return self._layout.replicate(np.int32(value))

    def _draws(self, key: Key, first: Array) -> Cohort:
        numbers = first + jnp.arange(self._traced.spec.block + 1)
        return jax.lax.map(lambda number: self._traced.round.draw(key, number), numbers)

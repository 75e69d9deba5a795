"""Prefetching of a cohort's examples: they are copied to a small table on the host, and from there to the device."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from functools import cached_property
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import ShapeDtypeStruct

from fedjax_het import tree
from fedjax_het.engine.execution.trace import TracedRound
from fedjax_het.engine.parallel.compilation import compile_program
from fedjax_het.engine.round.client_step import Cohort
from fedjax_het.engine.round.event_schedule import EventSchedule
from fedjax_het.types import Array, Examples, HostArray, Key, Rows


def select_rows(rows: Rows, ids: HostArray, is_here: HostArray) -> Rows:
    """The rows of the given clients; absent clients (`is_here` False) have no examples."""
    return Rows(rows.index[ids], np.where(is_here, rows.count[ids], 0).astype(np.int32))


def compact_examples(examples: Examples, tables: Sequence[Rows], num_slots: int) -> tuple[Examples, tuple[Rows, ...]]:
    """Copy the examples that index tables refer to into a compact array.

    Slot 0 is the first example of the federation, to which padding points before and after, so even masked entries
    read the same numbers. Unused slots are not initialized.

    Args:
        examples: The examples of the federation.
        tables: Index tables into them, [..., capacity].
        num_slots: The number of examples of the copy, at least the number of referenced examples plus one.

    Returns:
        (The copied examples, the tables with indices into the copy.)
    """
    is_entry = [np.arange(rows.index.shape[-1]) < np.asarray(rows.count)[..., None] for rows in tables]
    new_tables: list[Rows] = []
    positions: list[np.ndarray] = [np.zeros(1, np.int32)]
    for rows, entry in zip(tables, is_entry, strict=True):
        index, offset = np.zeros_like(rows.index), sum(map(len, positions))
        positions.append(np.asarray(rows.index)[entry])
        index[entry] = np.arange(offset, offset + len(positions[-1]))
        new_tables.append(rows._replace(index=index))
    chosen = np.concatenate(positions)
    return Examples(*(_gather(np.asarray(values), chosen, num_slots) for values in examples)), tuple(new_tables)


def _gather(values: np.ndarray, positions: np.ndarray, num_slots: int) -> np.ndarray:
    gathered = np.empty((num_slots, *values.shape[1:]), values.dtype)
    # "clip" writes directly into the result, while "raise" uses a buffer; no position is out of range.
    np.take(values, positions, axis=0, out=gathered[: len(positions)], mode="clip")
    return gathered


def prefetch(pool: Executor, load: Callable[[Any], Any], items: Sequence[Any]) -> Iterator[Any]:
    """Yield load(item) for each item; the next item is loaded while the current one is in use."""
    pending = pool.submit(load, items[0])
    for next_item in [*items[1:], None]:
        loaded = pending.result()
        if next_item is not None:
            pending = pool.submit(load, next_item)
        yield loaded


class CohortBatch(NamedTuple):
    """A round's cohort and the index tables of its clients. Leaves [seeds, slots, ...]."""

    cohort: Cohort
    train: Rows
    valid: Rows


PrefetchedCohort = tuple[CohortBatch, Examples]
"""The input of a round on the device: its cohort and the examples; all seeds share the examples."""


class ExamplePrefetcher:
    """The examples on the device: all at once, or, if `is_streaming`, those of each cohort as needed."""

    def __init__(self, traced: TracedRound, is_streaming: bool):
        """Compile the program that draws cohorts."""
        self.is_streaming, self._traced, spec = is_streaming, traced, traced.spec
        self._layout, self._data = traced.layout, spec.federation.data
        self.num_slots = 1 + spec.most_examples  # examples of any round, plus one for padding
        self._arguments = self._layout.replicate((spec.keys(), spec.schedule))
        self._draw_all = spec.map_over_runs(self._draw_cohorts, (0, 0, None))
        self._draw = compile_program(self._draw_all, self._layout, *self._arguments, self._number(0))

    def draw_cohorts(self, first: int) -> list[Cohort]:
        """Draw the cohorts of a block of rounds starting at `first`, plus one more round, as NumPy arrays."""
        drawn = self._draw(*self._arguments, self._number(first))
        by_round = jax.tree.map(lambda x: np.asarray(x).swapaxes(0, 1), drawn)
        return [tree.take(by_round, number) for number in range(len(by_round.ids))]

    def prefetch(self, cohort: Cohort) -> PrefetchedCohort:
        """Copy the training data of a cohort to the device."""
        tables = tuple(select_rows(part, cohort.ids, cohort.is_here) for part in (self._data.train, self._data.valid))
        examples, (train, valid) = self.load_examples(tables, self.num_slots)
        return CohortBatch(self._layout.replicate(cohort), train, valid), examples

    def load_examples(self, tables: tuple[Rows, ...], num_slots: int) -> tuple[Examples, tuple[Rows, ...]]:
        """Copy the examples of the given tables to the device, see `compact_examples`."""
        if not self.is_streaming:
            return self._all_examples, self._layout.replicate(tables)
        return self._layout.replicate(compact_examples(self._data.examples, tables, num_slots))

    @property
    def shapes(self) -> PrefetchedCohort:
        axes = (self._traced.spec.num_runs, self._layout.round_up(self._traced.spec.cohort_size))

        def row_shapes(part: Rows) -> Rows:
            return jax.tree.map(lambda x: ShapeDtypeStruct((*axes, *x.shape[1:]), np.int32), part)

        cohort = jax.tree.map(
            lambda x: ShapeDtypeStruct((x.shape[0], *x.shape[2:]), x.dtype),
            jax.eval_shape(self._draw_all, *self._arguments, self._number(0)),
        )
        batch = CohortBatch(cohort, row_shapes(self._data.train), row_shapes(self._data.valid))
        return batch, self.shapes_of_examples(self.num_slots)

    def shapes_of_examples(self, num_slots: int) -> Examples:
        num = num_slots if self.is_streaming else len(self._data.examples.labels)
        return jax.tree.map(lambda x: ShapeDtypeStruct((num, *x.shape[1:]), x.dtype), self._data.examples)

    @cached_property
    def _all_examples(self) -> Examples:
        return self._layout.replicate(self._data.examples)

    def release(self) -> None:
        self.__dict__.pop("_all_examples", None)

    def _number(self, value: int) -> Array:
        return self._layout.replicate(np.int32(value))

    def _draw_cohorts(self, key: Key, schedule: EventSchedule | None, first: Array) -> Cohort:
        numbers = first + jnp.arange(self._traced.spec.block + 1)
        return jax.lax.map(lambda number: self._traced.round.draw(key, number, schedule), numbers)

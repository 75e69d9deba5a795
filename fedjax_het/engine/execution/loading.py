"""Loading of cohorts: their ids, index tables and examples.

Inputs that change from round to round are NumPy arrays, which a compiled program copies to its devices when called.
For small arrays this is ten times faster than `jax.device_put`.
"""

from collections.abc import Sequence
from functools import cached_property
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import ShapeDtypeStruct

from fedjax_het import tree
from fedjax_het.engine.execution.trace import TracedRound
from fedjax_het.engine.parallel.compilation import Program, jit_program, replicated_shapes
from fedjax_het.engine.parallel.runs import allocate
from fedjax_het.engine.round.client_step import Cohort
from fedjax_het.engine.round.event_schedule import EventSchedule
from fedjax_het.placeholders import HIDDEN_TEST_ROWS
from fedjax_het.types import Array, ClientData, Examples, HostArray, Key, PublicInputs, PyTree, Rows


def select_rows(rows: Rows, ids: HostArray, is_here: HostArray) -> Rows:
    """The rows of the given clients; absent clients (`is_here` False) have no examples."""
    return Rows(rows.index[ids], np.where(is_here, rows.count[ids], 0).astype(np.int32))


def compact_examples(examples: Examples, tables: Sequence[Rows], num_slots: int) -> tuple[Examples, tuple[Rows, ...]]:
    """Copy the examples that index tables refer to into a compact array.

    Slot 0 is the first example of the federation, to which padding points before and after, so even masked entries
    read the same numbers. Unused slots are not initialized.

    Args:
        examples: The examples of the federation. Public ones are not copied.
        tables: Index tables into them, [..., capacity]. Their concepts are kept.
        num_slots: The number of examples of the copy, at least the number of referenced examples plus one.

    Returns:
        (The copied examples, the tables with indices into the copy.)
    """
    new_tables: list[Rows] = []
    positions: list[np.ndarray] = [np.zeros(1, np.int32)]
    for rows in tables:
        index, offset, entry = np.zeros_like(rows.index), sum(map(len, positions)), rows.is_entry
        positions.append(np.asarray(rows.index)[entry])
        index[entry] = np.arange(offset, offset + len(positions[-1]))
        new_tables.append(rows._replace(index=index))
    chosen = np.concatenate(positions)
    concepts = examples.concepts
    if concepts is not None:
        num_examples = len(examples.labels)
        concept = iter(np.split(chosen // num_examples, np.cumsum(list(map(len, positions)))[:-1])[1:])
        chosen = chosen % num_examples
        for rows in new_tables:
            rows.index[rows.is_entry] += next(concept) * num_slots
        if concepts.seed is not None:
            concepts = concepts._replace(numbers=_gather(np.arange(num_examples, dtype=np.int32), chosen, num_slots))
    inputs, labels = (_gather(np.asarray(values), chosen, num_slots) for values in examples[:2])
    return examples._replace(inputs=inputs, labels=labels, concepts=concepts), tuple(new_tables)


def sort_by_client(examples: Examples, train: Rows) -> tuple[Examples, HostArray]:
    """Copy all examples so that those of a client are side by side, where a batch is read faster.

    Args:
        examples: The examples of the federation.
        train: The clients' training examples.

    Returns:
        (The copy; the position of each example in it.)
    """
    num, concepts = len(examples.labels), examples.concepts
    positions = np.asarray(train.index)[train.is_entry] % num
    first = np.full(num, len(positions))  # where each example first appears
    first[positions[::-1]] = np.arange(len(positions))[::-1]
    order, places = np.argsort(first, kind="stable").astype(np.int32), np.empty(num, np.int32)
    places[order] = np.arange(num)
    if concepts is not None and concepts.seed is not None:
        concepts = concepts._replace(numbers=order)
    inputs, labels = (_gather(np.asarray(values), order, num) for values in examples[:2])
    return examples._replace(inputs=inputs, labels=labels, concepts=concepts), places


def move_entries(rows: Rows, places: HostArray) -> Rows:
    """The same entries of an index table for the copy of `sort_by_client`."""
    position = rows.index % len(places)
    return rows._replace(index=rows.index - position + places[position])


def _gather(values: HostArray, positions: np.ndarray, num_slots: int) -> HostArray:
    gathered = allocate((num_slots, *values.shape[1:]), values.dtype)
    # "clip" writes directly into the result, while "raise" uses a buffer; no position is out of range.
    np.take(values, positions, axis=0, out=gathered[: len(positions)], mode="clip")
    return gathered


class CohortBatch(NamedTuple):
    """A cohort and the index tables of its clients. Leaves [runs, slots, ...]."""

    cohort: Cohort
    train: Rows
    valid: Rows
    test: Rows = HIDDEN_TEST_ROWS  # only for diagnostics

    def with_examples(self, examples: Examples) -> ClientData:
        """The data of the cohort that clients may access."""
        return ClientData(examples, self.train, self.valid, HIDDEN_TEST_ROWS)


LoadedCohort = tuple[CohortBatch, Examples]
"""The data of a round; all runs share the examples."""


class CohortLoader:
    """The data of cohorts; the examples are on the device all at once or, if `is_streaming`, as needed."""

    def __init__(self, traced: TracedRound, is_streaming: bool):
        """Find the number of examples that a cohort needs at most."""
        self.is_streaming, self._traced, spec = is_streaming, traced, traced.spec
        self._layout, self._data = traced.layout, spec.federation.data
        self._num_slots = {with_test: 1 + spec.max_examples(with_test) for with_test in (False, True)}  # and padding
        known = traced.shapes.state.server.participation
        self._known = jax.tree.map(lambda x: ShapeDtypeStruct((spec.num_runs, *x.shape), x.dtype), known)

    def begin_compilation(self) -> None:
        """Begin to compile the program that draws cohorts; see `Program.begin_compilation`."""
        first, spec = self._layout.replicate(np.int32(0)), self._traced.spec
        known, axes = replicated_shapes(self._known, self._layout), (0, 0, None, 0)
        jitted = jit_program(spec.map_over_runs(self._draw_cohorts, axes), self._layout, is_quick=True)
        program = Program("", jitted, (*self._arguments, first, known), axes, spec.num_calls)
        self._draw = program.begin_compilation()

    def draw(self, first: int, known: PyTree) -> list[Cohort]:
        """Draw the cohorts of a block of rounds starting at `first`, plus one more round, as NumPy arrays.

        If the draw depends on the state of the participation, `known`, draw the cohort of this round alone.
        """
        drawn = self._draw.result()(*self._arguments, np.int32(first), known)
        by_round = jax.tree.map(lambda x: np.asarray(x).swapaxes(0, 1), drawn)
        return [tree.take(by_round, number) for number in range(len(by_round.ids))]

    def load(self, cohort: Cohort, round: int, with_test: bool = False) -> LoadedCohort:
        """Find the data of a cohort.

        Args:
            cohort: The cohort, leaves [runs, slots].
            round: The number of the round.
            with_test: Whether to include test examples, and all examples of absent clients.
        """
        is_here, ids, data, phases = cohort.is_here, cohort.ids, self._data, self._traced.spec.federation.phases
        if phases is not None:
            ids, data = phases.rows[phases.number(round)][ids], phases
        parts = [data.train, data.valid]
        if with_test:
            is_here = np.broadcast_to(np.arange(is_here.shape[1]) < self._traced.round.cohort_size, is_here.shape)
            parts.append(data.test)
        tables = tuple(select_rows(part, ids, is_here) for part in parts)
        examples, rows = self.load_examples(tables, self._num_slots[with_test])
        return CohortBatch(cohort, *rows), examples

    def load_examples(self, tables: tuple[Rows, ...], num_slots: int) -> tuple[Examples, tuple[Rows, ...]]:
        """The examples of the given tables, see `compact_examples`, or all examples, which are on the device."""
        if self.is_streaming:
            return compact_examples(self._data.examples._replace(public=self._public), tables, num_slots)
        examples, places = self._all_examples
        return examples, tables if places is None else tuple(move_entries(rows, places) for rows in tables)

    def shapes(self, with_test: bool = False) -> LoadedCohort:
        """The shapes of the results of `load`."""
        spec, slots = self._traced.spec, self._layout.round_up(self._traced.spec.cohort_size)
        draw = jax.vmap(self._draw_cohorts, (0, 0, None, 0))
        drawn = jax.eval_shape(draw, jax.eval_shape(spec.keys), spec.schedule, np.int32(0), self._known)
        cohort = jax.tree.map(lambda x: ShapeDtypeStruct((x.shape[0], *x.shape[2:]), x.dtype), drawn)
        rows = jax.tree.map(
            lambda x: ShapeDtypeStruct((spec.num_runs, slots, *x.shape[1:]), np.int32),
            self._data[1 : 4 if with_test else 3],
        )
        return CohortBatch(cohort, *rows), self.shapes_of_examples(self._num_slots[with_test])

    def shapes_of_examples(self, num_slots: int) -> Examples:
        examples = self._data.examples
        num = num_slots if self.is_streaming else len(examples.labels)
        public = jax.tree.map(lambda x: ShapeDtypeStruct(x.shape, x.dtype), examples.public)
        concepts: Any = jax.tree.map(lambda x: ShapeDtypeStruct(np.shape(x), x.dtype), examples.concepts)
        if (self.is_streaming or self._is_copied) and concepts is not None and concepts.seed is not None:
            concepts = concepts._replace(numbers=ShapeDtypeStruct((num,), np.int32))
        own = jax.tree.map(lambda x: ShapeDtypeStruct((num, *x.shape[1:]), x.dtype), Examples(*examples[:2]))
        return own._replace(public=public, concepts=concepts)

    def release(self) -> None:
        """Free the memory of the examples on the device."""
        for name in ("_all_examples", "_public"):
            self.__dict__.pop(name, None)

    @property
    def _is_copied(self) -> bool:
        """Whether the examples on the device are a copy: those that are mapped from a file may exceed the memory."""
        return not isinstance(self._data.examples.inputs, np.memmap)

    @cached_property
    def _all_examples(self) -> tuple[Examples, HostArray | None]:
        """All examples, on the device, and the new position of each; None: that in the federation."""
        examples, places = self._data.examples, None
        if self._is_copied:
            examples, places = sort_by_client(examples, self._data.train)
        return self._layout.replicate(examples), places

    @cached_property
    def _public(self) -> PublicInputs | None:
        """The public examples, which are on the device also with streaming."""
        return self._layout.replicate(self._data.examples.public)

    @cached_property
    def _arguments(self) -> tuple[Key, EventSchedule | None]:
        return self._layout.replicate((self._traced.spec.keys(), self._traced.spec.schedule))

    def _draw_cohorts(self, key: Key, schedule: EventSchedule | None, first: Array, known: PyTree) -> Cohort:
        spec = self._traced.spec
        numbers = first + jnp.arange(1 if spec.participation.init else spec.block + 1)
        return jax.lax.map(lambda number: self._traced.round.draw(key, number, schedule, known), numbers)

"""What each round's clients see of the data, drawn and brought to the device ahead of the round."""

from functools import cached_property
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import ShapeDtypeStruct

from fedjax_het.engine import staging
from fedjax_het.engine.client_side import Cohort
from fedjax_het.engine.job import compiled
from fedjax_het.engine.wiring import Wired
from fedjax_het.types import Array, Examples, Key, Rows


class Window(NamedTuple):
    """A round's cohort and which examples are whose. Leaves [seeds, slots, ...]."""

    cohort: Cohort
    train: Rows
    valid: Rows


Brought = tuple[Window, Examples]
"""What a round sees, on the device; the seeds share the examples."""


class Windows:
    """What there is to see: all examples, on the device, or those that are named, copied there as they are needed."""

    def __init__(self, wired: Wired, is_streaming: bool):
        """Compile the drawing of cohorts."""
        self.is_streaming, self._wired, job = is_streaming, wired, wired.job
        self._layout, self._data = wired.layout, job.federation.data
        self.places = 1 + job.most_examples  # for any round's, and one for padding
        self._keys = self._layout.place(job.keys())
        self._draw = compiled(job.over_runs([self._draws], (0, None)), self._layout, self._keys, self._number(0))

    def cohorts(self, first: int) -> list[Cohort]:
        """In numpy: those of as many rounds as there are in a block, from `first` on, and of one more."""
        drawn = self._draw(self._keys, self._number(first))
        ids, is_here = (np.asarray(x).swapaxes(0, 1) for x in drawn)
        return [Cohort(*each) for each in zip(ids, is_here, strict=True)]

    def bring(self, cohort: Cohort) -> Brought:
        """What this cohort sees."""
        tables = tuple(staging.taken(part, *cohort) for part in (self._data.train, self._data.valid))
        examples, (train, valid) = self.seen(tables, self.places)
        return Window(self._layout.place(cohort), train, valid), examples

    def seen(self, tables: tuple[Rows, ...], places: int) -> tuple[Examples, tuple[Rows, ...]]:
        """(examples, tables into them), on the device.   places: enough for all that the tables name, and one more."""
        if not self.is_streaming:
            return self._everything, self._layout.place(tables)
        return self._layout.place(staging.compact(self._data.examples, tables, places))

    @property
    def shapes(self) -> Brought:
        places = (self._wired.job.num_runs, self._layout.padded(self._wired.job.cohort_size))

        def taken(part: Rows) -> Rows:
            return jax.tree.map(lambda x: ShapeDtypeStruct((*places, *x.shape[1:]), np.int32), part)

        cohort = Cohort(ShapeDtypeStruct(places, np.int32), ShapeDtypeStruct(places, bool))
        window = Window(cohort, taken(self._data.train), taken(self._data.valid))
        return window, self.shapes_of_examples(self.places)

    def shapes_of_examples(self, places: int) -> Examples:
        num = places if self.is_streaming else len(self._data.examples.labels)
        return Examples(*(ShapeDtypeStruct((num, *x.shape[1:]), x.dtype) for x in self._data.examples))

    @cached_property
    def _everything(self) -> Examples:
        return self._layout.place(self._data.examples)

    def release(self) -> None:
        self.__dict__.pop("_everything", None)

    def _number(self, value: int) -> Array:
        return self._layout.place(np.int32(value))

    def _draws(self, key: Key, first: Array) -> Cohort:
        numbers = first + jnp.arange(self._wired.job.block + 1)
        return jax.lax.map(lambda number: self._wired.round.draw(key, number), numbers)

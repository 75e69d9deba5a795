"""The data of clients by phase: index tables, and the phase of each round."""

from collections.abc import Sequence
from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Int

from fedjax_het.placeholders import HIDDEN_CLASSES
from fedjax_het.types import Array, Phase, Rows

ABSENT = -1
"""The concept of an example that its client does not have in a phase."""


@dataclass(frozen=True, eq=False)
class Phases:
    """The index tables of clients whose data change with the round.

    Each client has one or several versions of its data. A row of the tables is a version of one client; phases that
    are equal for a client share the row.

    Args:
        starts: The first round of each phase; starts[0] is 0.
        rows: The row of each client in each phase.
        tables: The training, validation and test examples of each version: index [versions, capacity].
        has_class: Whether a client has training examples of the class in the phase; None: this is hidden.
    """

    starts: Int[np.ndarray, "phases"]
    rows: Int[np.ndarray, "phases clients"]
    tables: tuple[Rows, Rows, Rows]
    has_class: Bool[np.ndarray, "phases class"] | None

    def number(self, round: int) -> int:
        """The number of the phase of a round."""
        return int(np.searchsorted(self.starts, round, side="right")) - 1

    @property
    def train(self) -> Rows:
        return self.tables[0]

    @property
    def valid(self) -> Rows:
        return self.tables[1]

    @property
    def test(self) -> Rows:
        return self.tables[2]

    def select(self, tables: Sequence[Rows], rows: Int[np.ndarray, "clients"]) -> tuple[Rows, ...]:
        """The given rows of tables, one per client: index [clients, capacity], count [clients]."""
        return tuple(Rows(table.index[rows], table.count[rows]) for table in tables)

    def largest_counts(self, table: Rows) -> Int[np.ndarray, "clients"]:
        """The largest number of examples of each client in any phase."""
        return np.asarray(table.count)[self.rows].max(axis=0)

    @property
    def keeps_counts(self) -> bool:
        """Whether each client has the same number of training examples in all phases."""
        counts = np.asarray(self.train.count)[self.rows]
        return bool((counts == counts[0]).all())

    @property
    def first_equal(self) -> Int[np.ndarray, "phases"]:
        """The first phase in which all clients have the same data as in this one."""
        return np.array([np.flatnonzero((self.rows == rows).all(axis=1))[0] for rows in self.rows])

    @property
    def versions(self) -> Int[np.ndarray, "versions clients"]:
        """The rows of each client, once each; clients with fewer versions than others repeat their first row."""
        own = [np.unique(rows) for rows in self.rows.T]
        width = max(map(len, own))
        return np.stack(
            [np.pad(rows, (0, width - len(rows)), mode="constant", constant_values=rows[0]) for rows in own]
        ).T


def find_phase(phases: Phases | None, round: Array) -> Phase | None:
    """The phase of a round, inside a compiled program; None if data never change."""
    if phases is None:
        return None
    starts = jnp.asarray(phases.starts, jnp.int32)
    number = jnp.searchsorted(starts, round, side="right").astype(jnp.int32) - 1
    if phases.has_class is None:
        return Phase(number, starts[number], HIDDEN_CLASSES, HIDDEN_CLASSES)
    had_class = np.logical_or.accumulate(np.pad(phases.has_class, ((1, 0), (0, 0)))[:-1])
    return Phase(number, starts[number], *(jnp.asarray(x)[number] for x in (phases.has_class, had_class)))

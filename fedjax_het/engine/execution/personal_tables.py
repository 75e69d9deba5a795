"""Index tables of the examples on which personal models are scored, and of those that they read."""

from collections.abc import Iterator

import numpy as np

from fedjax_het.engine.evaluation.evaluate import personal_rows
from fedjax_het.engine.execution.run_spec import RunSpec
from fedjax_het.types import Rows

Tables = dict[str, Rows]
TRAINING = ("train", "valid")
_SPLITS = {"personal": "test", "personal_valid": "valid"}  # of tables with a row per client, besides TRAINING


class PersonalTables:
    """The tables of a run; their shapes do not depend on the round."""

    def __init__(self, spec: RunSpec, reads_training: bool):
        """
        Args:
            spec: The run.
            reads_training: Whether a client's own model also depends on its training and validation examples.
        """
        self._spec, self._reads_training, self._phases = spec, reads_training, spec.federation.phases

    def select(self, round: int) -> Tables:
        """The tables of a round, with one row per client, or a single row for all."""
        federation = self._spec.federation.in_round(round)
        tables: Tables = personal_rows(federation, self._spec.personal_on_test)
        if self._reads_training:
            tables |= dict(zip(TRAINING, (federation.data.train, federation.data.valid), strict=True))
        return tables

    @property
    def num_versions(self) -> int:
        """The number of versions of all clients' data together."""
        return len(self._phases.test.count) if self._phases else 0

    def versions(self, round: int) -> Iterator[tuple[np.ndarray, Tables]]:
        """(The version of each client's data, the tables of the round with the test examples of these versions)."""
        if self._phases:
            for rows in self._phases.versions:
                (own,) = self._phases.select([self._phases.test], rows)
                yield rows, self.select(round) | {"personal": own}

    def has_row_per_client(self, rows: Rows) -> bool:
        """Whether each client has its own row, rather than all sharing one."""
        return len(rows.count) == self._spec.num_clients

    def count_slots(self, num_blocks: int, block: int) -> int:
        """Slots for the examples of any block of clients in any round, plus one for padding."""
        total = np.ones(num_blocks, int)
        for name, rows in self.select(0).items():
            if name in (*_SPLITS, *TRAINING):
                largest = self._spec.federation.largest_counts(_SPLITS.get(name, name))
                total += np.pad(largest, (0, num_blocks * block - len(largest))).reshape(num_blocks, -1).sum(axis=1)
            else:
                total += rows.count.sum()
        return int(total.max())

"""A federation: the examples once, and for every client an index table into them."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from fedjax_het.data.preparation import Preparation
from fedjax_het.types import Array, ClientData, Examples, Key, Rows


class Fractions(NamedTuple):
    """The parts of the examples that were drawn at random to be held out; None where the data set's own split decides.

    test: of all examples, for the common test set.   client_test, client_valid: of each client's.
    """

    test: float | None
    client_test: float | None
    client_valid: float | None


@dataclass(frozen=True, eq=False)
class Federation:
    """Who has what, in host memory (numpy). Made by `federate`.

    Index tables of clients are [clients, capacity] int32, zero-padded, with count [clients] int32; capacity is at least
    1, and count may be 0. An example is in at most one table.
    """

    name: str
    data: ClientData
    newcomers: ClientData | None  # clients that never train; their `examples` is the same object
    test: Rows | None  # the common test set: index [n], count []
    unseen: dict[str, Rows]  # domains that no client has: index [n], count []
    class_names: tuple[str, ...]
    client_names: tuple[str, ...]
    newcomer_names: tuple[str, ...]
    prepare: Preparation  # inputs as stored -> float32 inputs as models take them
    fractions: Fractions

    @property
    def augment(self) -> Callable[[Key, Array, Array], tuple[Array, Array]] | None:
        """(key, inputs as stored, labels) -> both as models take them in training, where that differs."""
        return self.prepare.for_training if self.prepare.augment else None

    @property
    def examples(self) -> Examples:
        return self.data.examples

    @property
    def num_clients(self) -> int:
        return len(self.data.train.count)

    @property
    def num_newcomers(self) -> int:
        return 0 if self.newcomers is None else len(self.newcomers.train.count)

    @property
    def num_classes(self) -> int:
        return len(self.class_names)

    @property
    def class_counts(self) -> np.ndarray:
        """[clients, class] int64: the training examples of each client by class; the pixels where labels are masks."""
        return self._count_classes(self.data.train)

    @property
    def fingerprint(self) -> str:
        """sha256, in hex, over all index tables and counts: equal exactly if everyone has the same positions."""
        digest = hashlib.sha256()
        for name, rows in self._tables():
            digest.update(f"{name} {np.shape(rows.index)};".encode())
            for values in rows:
                digest.update(np.ascontiguousarray(values, "<i4").tobytes())
        return digest.hexdigest()

    def describe(self) -> list[dict]:
        """A row a client, newcomers last: client, is_newcomer, train, valid, test, and classes (training, by name)."""
        rows = self._describe(self.client_names, self.data, is_newcomer=False)
        if self.newcomers is not None:
            rows += self._describe(self.newcomer_names, self.newcomers, is_newcomer=True)
        return rows

    def _describe(self, names: tuple[str, ...], data: ClientData, is_newcomer: bool) -> list[dict]:
        counts = self._count_classes(data.train)
        return [
            {
                "client": name,
                "is_newcomer": is_newcomer,
                "train": int(data.train.count[i]),
                "valid": int(data.valid.count[i]),
                "test": int(data.test.count[i]),
                "classes": dict(zip(self.class_names, counts[i].tolist(), strict=True)),
            }
            for i, name in enumerate(names)
        ]

    def _count_classes(self, rows: Rows) -> np.ndarray:
        labels = self.examples.labels
        return np.stack(
            [
                np.bincount(labels[index[:count]].reshape(-1), minlength=self.num_classes)
                for index, count in zip(rows.index, rows.count, strict=True)
            ]
        )

    def _tables(self) -> list[tuple[str, Rows]]:
        tables = []
        for group, data in (("clients", self.data), ("newcomers", self.newcomers)):
            if data is not None:
                tables += [(f"{group}/{part}", getattr(data, part)) for part in ("train", "valid", "test")]
        if self.test is not None:
            tables.append(("test", self.test))
        return tables + [(f"unseen/{name}", rows) for name, rows in sorted(self.unseen.items())]

"""Federations: a single copy of the examples, and tables of example positions per client."""

import hashlib
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from fedjax_het.data.augmentation import Augmentation
from fedjax_het.data.label_arrays import count_labels
from fedjax_het.data.phases import Phases
from fedjax_het.data.preparation import Preparation
from fedjax_het.data.units import Units
from fedjax_het.types import ClientData, Examples, HostArray, PublicInputs, Rows

_CHUNK_BYTES = 1 << 26  # bytes of examples hashed at a time


class Fractions(NamedTuple):
    """The fractions of examples sampled for evaluation; None if a published split is used.

    Args:
        test: The fraction of all examples in the common test set.
        client_test: The fraction of each client's examples in its own test set.
        client_valid: The fraction of each client's examples in its validation set.
    """

    test: float | None
    client_test: float | None
    client_valid: float | None


@dataclass(frozen=True, eq=False)
class Federation:
    """A data set distributed over clients, in host memory (NumPy); built by `federate`.

    Position tables of clients are [clients, capacity] int32, padded with zeros, with count [clients] int32; capacity is
    at least 1, and a count may be 0. No example is in two tables.

    Args:
        name: The name of the data set.
        data: The examples, and the training, validation and test tables of the training clients.
        newcomers: The same for clients that never train, with the same `examples` object; None without such clients.
        test: The common test set, index [n] and count []; None without one.
        unseen: The examples of each domain that no client has: index [n] and count [].
        class_names: The name of each class, tag, rank or target.
        client_names: The name of each training client.
        newcomer_names: The name of each client that never trains.
        prepare: Maps stored inputs to model inputs.
        fractions: The fractions of the examples sampled for evaluation.
        vocabulary: The number of tokens, see `Dataset`.
        client_domains: The domain of each training client; None unless every client has the examples of one.
        phases: The tables of clients whose data change with the round; `data` then has those of one phase, the first
            unless the federation is of another round, see `in_round`. None: data never change.
        units: The units of labels that are numbers in standardised form; None if they are in their units.
    """

    name: str
    data: ClientData
    newcomers: ClientData | None
    test: Rows | None
    unseen: dict[str, Rows]
    class_names: tuple[str, ...]
    client_names: tuple[str, ...]
    newcomer_names: tuple[str, ...]
    prepare: Preparation
    fractions: Fractions
    vocabulary: int | None = None
    client_domains: tuple[str, ...] | None = None
    phases: Phases | None = None
    units: Units | None = None

    @property
    def augment(self) -> Augmentation | None:
        """(key, stored inputs, labels) -> augmented inputs and labels for training; None without augmentation."""
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
        """The number of classes, tags, ranks or targets."""
        return len(self.class_names)

    @property
    def class_counts(self) -> np.ndarray:
        """[client, class] int64: the number of training examples, or of their labels, see `count_labels`."""
        return self.count_classes(self.data.train)

    def largest_counts(self, part: str) -> np.ndarray:
        """[client]: the number of examples in "train", "valid" or "test", in any phase."""
        if self.phases is None:
            return np.asarray(getattr(self.data, part).count)
        return self.phases.largest_counts(getattr(self.phases, part))

    def in_round(self, round: int) -> "Federation":
        """The federation with the data that clients have in a round."""
        if self.phases is None:
            return self
        tables = self.phases.select(self.phases.tables, self.phases.rows[self.phases.number(round)])
        return replace(self, data=ClientData(self.examples, *tables))

    @cached_property
    def fingerprint(self) -> str:
        """The hexadecimal SHA-256 of all examples and position tables; equal if and only if these are equal."""
        digest = hashlib.sha256()
        arrays = [
            (f"{name}/{field}", values) for name, rows in self._tables() for field, values in rows._asdict().items()
        ]
        others = [] if self.examples.public is None else [("public", self.examples.public.inputs)]
        if self.units is not None:
            others += [(f"units/{name}", x) for name, x in self.units._asdict().items() if isinstance(x, np.ndarray)]
        examples = [("inputs", self.examples.inputs), ("labels", self.examples.labels), *others]
        concepts = self.examples.concepts._asdict() if self.examples.concepts else {}
        examples += [(f"concepts/{name}", values) for name, values in concepts.items() if values is not None]
        examples += [] if self.phases is None else [("phases/starts", self.phases.starts), ("phases", self.phases.rows)]
        for name, values in (*examples, *arrays):
            values = np.asarray(values)
            digest.update(f"{name} {values.dtype.newbyteorder('<').str} {values.shape};".encode())
            for chunk in np.array_split(np.atleast_1d(values), -(-values.nbytes // _CHUNK_BYTES) or 1):
                digest.update(np.ascontiguousarray(chunk, chunk.dtype.newbyteorder("<")).data)
        return digest.hexdigest()

    def with_examples(self, examples: Examples) -> "Federation":
        """The federation with other examples at the same positions."""
        newcomers = self.newcomers and self.newcomers._replace(examples=examples)
        return replace(self, data=self.data._replace(examples=examples), newcomers=newcomers)

    def with_public(self, inputs: HostArray) -> "Federation":
        """The federation with these public inputs, [examples, ...], as they are stored."""
        public = PublicInputs(inputs, np.arange(len(inputs), dtype=np.int32))
        return self.with_examples(self.examples._replace(public=public))

    def describe(self) -> list[dict]:
        """Summarize the clients.

        Returns:
            One row per client, newcomers last: "client", "is_newcomer", the number of examples in "train", "valid" and
            "test", and "classes", the number of training examples per class name.
        """
        groups = [(self.client_names, self.data, False), (self.newcomer_names, self.newcomers, True)]
        return [
            {
                "client": name,
                "is_newcomer": is_newcomer,
                **{part: int(getattr(data, part).count[i]) for part in ("train", "valid", "test")},
                "classes": dict(zip(self.class_names, classes.tolist(), strict=True)),
            }
            for names, data, is_newcomer in groups
            if data is not None
            for i, (name, classes) in enumerate(zip(names, self.count_classes(data.train), strict=True))
        ]

    def count_classes(self, rows: Rows) -> np.ndarray:
        """[row, class] int64: the number of examples of a table, or of their labels, see `count_labels`."""
        positions = [index[:count] for index, count in zip(rows.index, rows.count, strict=True)]
        all_labels = np.asarray(self.examples.read_labels(np.concatenate(positions)))
        labels = np.split(all_labels, np.cumsum(list(map(len, positions)))[:-1])
        return np.stack([count_labels(own, self.num_classes) for own in labels])

    def _tables(self) -> list[tuple[str, Rows]]:
        tables = [
            (f"{group}/{part}", getattr(data, part))
            for group, data in (("clients", self.data), ("newcomers", self.newcomers))
            if data is not None
            for part in ("train", "valid", "test")
        ]
        if self.phases is not None:
            tables = [(f"phases/{part}", getattr(self.phases, part)) for part in ("train", "valid", "test")]
        tables += [] if self.test is None else [("test", self.test)]
        return tables + [(f"unseen/{name}", rows) for name, rows in sorted(self.unseen.items())]

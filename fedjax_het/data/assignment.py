"""Assignments of examples to clients: the inputs and outputs of partitions, and shared helpers."""

import dataclasses
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from fedjax_het.errors import InputError


class LabeledExamples(NamedTuple):
    """The properties of the examples that a partition assigns.

    Args:
        labels: [n] int32.
        domains: [n] int32.
        num_classes: 0 if examples have masks, label sequences, tags or numbers instead of a class; labels are then 0.
        positions: [n], their positions in the data set; None within a part of it.
        numbers: Labels that are numbers, [n, target]; None for others.
    """

    labels: np.ndarray
    domains: np.ndarray
    num_classes: int
    positions: np.ndarray | None = None
    numbers: np.ndarray | None = None

    def select(self, chosen: np.ndarray) -> "LabeledExamples":
        """The examples at these positions of these."""
        positions, numbers = (None if x is None else x[chosen] for x in (self.positions, self.numbers))
        return LabeledExamples(self.labels[chosen], self.domains[chosen], self.num_classes, positions, numbers)


Partition = Callable[[LabeledExamples, int, np.random.Generator], list[np.ndarray]]
"""(examples, num_clients, generator) -> the sorted positions of each client's examples."""


@dataclasses.dataclass(frozen=True)
class ResamplingPartition:
    """A partition that may assign an example several times, to one or several clients, or never.

    Args:
        draw: The partition.
    """

    draw: Partition

    def __call__(self, examples: LabeledExamples, num_clients: int, rng: np.random.Generator) -> list[np.ndarray]:
        """The sorted positions of each client's examples, with repetitions."""
        return self.draw(examples, num_clients, rng)


def split_by_sizes(positions: np.ndarray, sizes: np.ndarray) -> list[np.ndarray]:
    """Split positions into consecutive parts of these sizes."""
    return np.split(positions, np.cumsum(sizes)[:-1])


def assign_classes(examples: LabeledExamples, counts: np.ndarray, rng: np.random.Generator) -> list[np.ndarray]:
    """Assign counts[client, class] examples to each client; its positions are in random order."""
    parts = [[] for _ in counts]
    for label in range(examples.num_classes):
        shuffled = rng.permutation(np.flatnonzero(examples.labels == label))
        for part, piece in zip(parts, split_by_sizes(shuffled, counts[:, label]), strict=True):
            part.append(piece)
    return [rng.permutation(np.concatenate(part)) for part in parts]


def check_has_classes(examples: LabeledExamples) -> None:
    """Raise an error unless every example has a class."""
    if examples.num_classes == 0:
        if examples.numbers is not None:
            raise InputError(
                "these examples have numbers, not a class each. Use by_quantile, quantile_dirichlet, by_domain, iid or "
                "quantity_skew as the partition."
            )
        raise InputError(
            "these examples have sequences of labels, masks or tags, not a class each. Use by_domain, iid or "
            "quantity_skew as the partition."
        )


def check_enough_examples(num: int, num_clients: int, min_examples: int) -> None:
    """Raise InputError if the clients cannot have `min_examples` examples each, or there is no client."""
    if num_clients < 1:
        raise InputError(f"num_clients: must be at least 1, not {num_clients}.")
    min_examples = max(min_examples, 1)
    if min_examples * num_clients > num:
        raise InputError(
            f"{num_clients} clients with at least {min_examples} each need {min_examples * num_clients} examples, but "
            f"there are {num}. Give fewer clients or a smaller min_examples."
        )

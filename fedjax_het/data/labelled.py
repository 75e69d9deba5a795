"""What a partition sees and makes, and what every partition needs: checks, cuts and deals."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from fedjax_het.errors import InputError


class Labelled(NamedTuple):
    """What a partition may look at."""

    labels: np.ndarray  # [n] int32
    domains: np.ndarray  # [n] int32
    num_classes: int  # 0: examples have masks and no class, and their labels are all 0


Partition = Callable[[Labelled, int, np.random.Generator], list[np.ndarray]]
"""(examples, num_clients, generator) -> for each client its sorted positions in the examples."""


def cut(line: np.ndarray, sizes: np.ndarray, is_sorted: bool = True) -> list[np.ndarray]:
    """`line` in consecutive pieces of these sizes."""
    parts = np.split(line, np.cumsum(sizes)[:-1])
    return [np.sort(part) for part in parts] if is_sorted else parts


def deal(examples: Labelled, counts: np.ndarray, rng: np.random.Generator) -> list[np.ndarray]:
    """Positions for each client, counts[client, class] of each class, in random order."""
    hands = [[] for _ in counts]
    for label in range(examples.num_classes):
        mixed = rng.permutation(np.flatnonzero(examples.labels == label))
        for hand, piece in zip(hands, cut(mixed, counts[:, label], is_sorted=False), strict=True):
            hand.append(piece)
    return [rng.permutation(np.concatenate(hand)) for hand in hands]


def check_classes(examples: Labelled) -> None:
    """Raise InputError where examples have no class of their own, which a skew of classes could go by."""
    if examples.num_classes == 0:
        raise InputError(
            "these examples have masks, not a class each. Use by_domain, iid or quantity_skew as the partition."
        )


def check_enough(num: int, num_clients: int, least: int) -> None:
    """Raise InputError where `num` examples are not enough for one, and for `least`, a client."""
    if num_clients < 1:
        raise InputError(f"num_clients is {num_clients}. Give 1 or more.")
    if least < 0:
        raise InputError(f"min_examples is {least}. Give 0 or more.")
    least = max(least, 1)
    if least * num_clients > num:
        raise InputError(
            f"{num_clients} clients with at least {least} each need {least * num_clients} examples, but there are "
            f"{num}. Give fewer clients or a smaller min_examples."
        )

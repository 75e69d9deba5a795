"""Splits: unseen domains, the common test set, and the training, validation and test sets of clients."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from fedjax_het.data.dataset import Dataset
from fedjax_het.data.federation import Fractions
from fedjax_het.errors import InputError, nearest
from fedjax_het.types import Rows

AUTO = "auto"
_USUAL_FRACTION = 0.2


class ClientSplit(NamedTuple):
    """The positions of one client's examples, each in one of three arrays."""

    train: np.ndarray
    valid: np.ndarray
    test: np.ndarray


def pad_lists(lists: list[np.ndarray]) -> Rows:
    """Write lists of positions as one table padded with zeros: index [lists, capacity], count [lists], both int32.

    The capacity is the length of the longest list, and at least 1, so that a gather from an empty table is possible.
    """
    count = np.array([len(positions) for positions in lists], np.int32)
    index = np.zeros((len(lists), max(1, count.max(initial=0))), np.int32)
    for row, positions in zip(index, lists, strict=True):
        row[: len(positions)] = positions
    return Rows(index, count)


def to_rows(positions: np.ndarray) -> Rows:
    """Write one list of positions without padding: index [n], count []."""
    return Rows(np.asarray(positions, np.int32), np.asarray(len(positions), np.int32))


def draw_stratified(strata: np.ndarray, fraction: float, rng: np.random.Generator) -> np.ndarray:
    """Draw `fraction` of all examples and of every stratum, each to within one example: [n] bool.

    Systematic sampling: examples are sorted by stratum, at random within it, and drawn at even steps from a random
    start.
    """
    order = np.lexsort((rng.random(len(strata)), strata))
    steps = np.floor(np.arange(len(strata) + 1) * fraction + rng.random())
    is_drawn = np.zeros(len(strata), bool)
    is_drawn[order[np.diff(steps) > 0]] = True
    return is_drawn


def find_strata(dataset: Dataset, positions: np.ndarray) -> np.ndarray:
    """The stratum of each example: its domain and, if it has one label, its class."""
    classes = dataset.classes[positions] if dataset.has_label_per_example else 0
    return dataset.domains[positions] * dataset.num_classes + classes


def split_positions(
    positions: np.ndarray, valid_fraction: float, test_fraction: float, rng: np.random.Generator
) -> ClientSplit:
    """Split one client's positions at random; the three arrays are sorted.

    Counts are rounded to the nearest; of one or more examples at least one stays in train.
    """
    max_test = max(0, len(positions) - 1)
    num_test = min(int(test_fraction * len(positions) + 0.5), max_test)
    num_valid = min(int(valid_fraction * len(positions) + 0.5), max_test - num_test)
    test, valid, train = np.split(rng.permutation(positions), [num_test, num_test + num_valid])
    return ClientSplit(np.sort(train), np.sort(valid), np.sort(test))


def find_unseen_domains(dataset: Dataset, names: Sequence[str]) -> dict[str, np.ndarray]:
    """Find the positions of the examples of each of these domains."""
    names = (names,) if isinstance(names, str) else tuple(names)
    for name in names:
        if names.count(name) > 1:
            raise InputError(f"unseen_domains: '{name}' is named {names.count(name)} times. Name each domain once.")
        if name not in dataset.domain_names:
            raise InputError(
                f"unseen_domains: {dataset.name} has no domain '{name}'. {nearest(name, dataset.domain_names)}"
            )
    return {name: np.flatnonzero(dataset.domains == dataset.domain_names.index(name)) for name in names}


def default_client_test_fraction(has_common_test: bool) -> float:
    """The value of AUTO: 0 with a common test set, published or sampled, so that clients train on all other
    examples; otherwise 0.2."""
    return 0.0 if has_common_test else _USUAL_FRACTION


def has_own_split(is_split: np.ndarray, dataset: Dataset, unseen: dict[str, np.ndarray]) -> bool:
    """Whether a split, `dataset.is_test` or `dataset.is_valid`, has examples of domains that are not held out."""
    return bool((is_split & _is_in_seen_domain(dataset, unseen)).any())


def resolve_fractions(
    dataset: Dataset, unseen: dict[str, np.ndarray], requested: Fractions, local_test: bool
) -> Fractions:
    """Replace the requested fractions by None where a published split is used instead."""
    has_test, has_valid = (has_own_split(mask, dataset, unseen) for mask in (dataset.is_test, dataset.is_valid))
    return Fractions(
        test=0.0 if local_test else None if has_test else requested.test,
        client_test=None if local_test else requested.client_test,
        client_valid=None if has_valid else requested.client_valid,
    )


def _is_in_seen_domain(dataset: Dataset, unseen: dict[str, np.ndarray]) -> np.ndarray:
    is_seen = np.ones(len(dataset.labels), bool)
    for positions in unseen.values():
        is_seen[positions] = False
    return is_seen


def hold_out(
    dataset: Dataset, unseen: dict[str, np.ndarray], fractions: Fractions, local_test: bool, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """(positions of the common test set, which is empty with `local_test`, positions to distribute over clients)."""
    is_seen = _is_in_seen_domain(dataset, unseen)
    is_test = dataset.is_test & is_seen
    if local_test:
        if not is_test.any():
            raise InputError(
                f"local_test: {dataset.name} has no test split of its own. Omit local_test: client_test_fraction "
                "draws one."
            )
        is_test = np.zeros(len(is_test), bool)
    elif fractions.test is not None:
        candidates = np.flatnonzero(is_seen & ~dataset.is_valid)
        is_test[candidates] = draw_stratified(find_strata(dataset, candidates), fractions.test, rng)
    rest = np.flatnonzero(is_seen & ~is_test)
    if not dataset.splits["train"][rest].any():
        raise InputError(
            f"{dataset.name}: no examples left to train on. Hold out fewer domains, or use a data set with examples "
            "outside its own validation and test splits."
        )
    return np.flatnonzero(is_test), rest


def split_clients(
    dataset: Dataset, parts: list[np.ndarray], fractions: Fractions, generators: Sequence[np.random.Generator]
) -> list[ClientSplit]:
    """Split each client's positions by the published split if there is one, otherwise at random."""
    drawn = (fractions.client_valid or 0.0, fractions.client_test or 0.0)
    splits = []
    for part, rng in zip(parts, generators, strict=True):
        is_valid, is_test = dataset.is_valid[part], dataset.is_test[part]
        split = split_positions(part[~(is_valid | is_test)], *drawn, rng)
        if fractions.client_valid is None:
            split = split._replace(valid=part[is_valid])
        if fractions.client_test is None:
            split = split._replace(test=part[is_test])
        splits.append(split)
    return splits


def move_train_to_test(splits: list[ClientSplit], clients: np.ndarray) -> list[ClientSplit]:
    """Turn the training examples of these clients, which never train, into test examples."""
    result = list(splits)
    for i in clients:
        train, valid, test = splits[i]
        result[i] = ClientSplit(train[:0], valid, np.sort(np.concatenate([train, test])))
    return result


def equalize_sizes(
    splits: list[ClientSplit], clients: np.ndarray, generators: Sequence[np.random.Generator]
) -> list[ClientSplit]:
    """Subsample the training positions of these clients at random to the smallest number among them."""
    min_train = min(len(splits[i].train) for i in clients)
    if min_train == 0:
        raise InputError("equal_train: a client has no training examples. Use fewer clients, or leave equal_train out.")
    result = list(splits)
    for i, rng in zip(clients, generators, strict=True):
        result[i] = splits[i]._replace(train=np.sort(rng.permutation(splits[i].train)[:min_train]))
    return result

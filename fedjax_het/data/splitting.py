"""Index tables: which examples a client, or a test set, has. Integers move; examples never do."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from fedjax_het.data.dataset import Dataset
from fedjax_het.data.federation import Fractions
from fedjax_het.errors import InputError, nearest
from fedjax_het.types import Rows


class ClientSplit(NamedTuple):
    """The positions of one client's examples, each in one of three."""

    train: np.ndarray
    valid: np.ndarray
    test: np.ndarray


def pad_lists(lists: list[np.ndarray]) -> Rows:
    """Ragged lists as one zero-padded table: index [clients, capacity] and count [clients], both int32.

    The capacity is that of the longest list, and at least 1, so that a gather from an empty table is still a gather.
    """
    count = np.array([len(each) for each in lists], np.int32)
    index = np.zeros((len(lists), max(1, count.max(initial=0))), np.int32)
    for row, each in zip(index, lists, strict=True):
        row[: len(each)] = each
    return Rows(index, count)


def to_rows(positions: np.ndarray) -> Rows:
    """One list without padding: index [n], count []."""
    return Rows(np.asarray(positions, np.int32), np.int32(len(positions)))


def draw_stratified(strata: np.ndarray, fraction: float, rng: np.random.Generator) -> np.ndarray:
    """[n] bool: `fraction` of all examples, and of every stratum, each to within one example.

    Systematic sampling: examples are put in line by stratum, at random within it, and taken at even steps from a
    random start.
    """
    line = np.lexsort((rng.random(len(strata)), strata))
    steps = np.floor(np.arange(len(strata) + 1) * fraction + rng.random())
    is_drawn = np.zeros(len(strata), bool)
    is_drawn[line[np.diff(steps) > 0]] = True
    return is_drawn


def split_positions(
    positions: np.ndarray, valid_fraction: float, test_fraction: float, rng: np.random.Generator
) -> ClientSplit:
    """Cut one client's positions at random into train, valid and test; each sorted.

    Counts are rounded to the nearest; at least one example, where there is one, stays in train.
    """
    most = max(0, len(positions) - 1)
    num_test = min(_round(test_fraction * len(positions)), most)
    num_valid = min(_round(valid_fraction * len(positions)), most - num_test)
    mixed = rng.permutation(positions)
    test, valid, train = np.split(mixed, [num_test, num_test + num_valid])
    return ClientSplit(np.sort(train), np.sort(valid), np.sort(test))


def _round(number: float) -> int:
    return int(number + 0.5)


AUTO = "auto"
_USUAL_FRACTION = 0.2


def find_unseen_domains(dataset: Dataset, names: Sequence[str]) -> dict[str, np.ndarray]:
    """The positions of these domains, each by its name. Raises InputError for a domain that is not there, or named
    twice."""
    names = (names,) if isinstance(names, str) else tuple(names)
    for name in names:
        if names.count(name) > 1:
            raise InputError(f"unseen_domains: '{name}' is named {names.count(name)} times. Name each domain once.")
        if name not in dataset.domain_names:
            raise InputError(
                f"unseen_domains: {dataset.name} has no domain '{name}'. {nearest(name, dataset.domain_names)}"
            )
    return {name: np.flatnonzero(dataset.domains == dataset.domain_names.index(name)) for name in names}


def default_client_test_fraction(has_own_test: bool) -> float:
    """What AUTO stands for: 0 where the data set has a test split of its own, so that clients train on all the rest."""
    return 0.0 if has_own_test else _USUAL_FRACTION


def has_own_split(is_split: np.ndarray, dataset: Dataset, unseen: dict[str, np.ndarray]) -> bool:
    """Whether a split, `dataset.is_test` or `dataset.is_valid`, has examples of domains that are not held out."""
    return bool((is_split & _is_in_seen_domain(dataset, unseen)).any())


def resolve_fractions(dataset: Dataset, unseen: dict[str, np.ndarray], asked: Fractions, local_test: bool) -> Fractions:
    """What was asked for, but None where the data set's own split decides instead."""
    has_test, has_valid = (has_own_split(each, dataset, unseen) for each in (dataset.is_test, dataset.is_valid))
    return Fractions(
        test=0.0 if local_test else None if has_test else asked.test,
        client_test=None if local_test else asked.client_test,
        client_valid=None if has_valid else asked.client_valid,
    )


def _is_in_seen_domain(dataset: Dataset, unseen: dict[str, np.ndarray]) -> np.ndarray:
    """[n] bool: whether an example is of no domain that is held out altogether."""
    is_seen = np.ones(len(dataset.labels), bool)
    for positions in unseen.values():
        is_seen[positions] = False
    return is_seen


def hold_out(
    dataset: Dataset, unseen: dict[str, np.ndarray], fractions: Fractions, local_test: bool, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """(positions of the common test set, positions to distribute). With local_test nothing is held out in common.

    Raises InputError where nothing is left to train on, and for local_test without an own test split.
    """
    is_seen = _is_in_seen_domain(dataset, unseen)
    is_test = dataset.is_test & is_seen
    if local_test:
        if not is_test.any():
            raise InputError(
                f"local_test: {dataset.name} has no test split of its own. Leave local_test out: client_test_fraction "
                "draws one."
            )
        return np.zeros(0, int), _check_not_empty(dataset, np.flatnonzero(is_seen))
    if fractions.test is not None:
        seen = np.flatnonzero(is_seen & ~dataset.is_valid)
        classes = np.zeros(len(seen), int) if dataset.is_segmentation else dataset.labels[seen]
        strata = dataset.domains[seen] * dataset.num_classes + classes
        is_test[seen] = draw_stratified(strata, fractions.test, rng)
    return np.flatnonzero(is_test), _check_not_empty(dataset, np.flatnonzero(is_seen & ~is_test))


def _check_not_empty(dataset: Dataset, rest: np.ndarray) -> np.ndarray:
    if dataset.splits["train"][rest].any():
        return rest
    raise InputError(
        f"{dataset.name}: no examples left to train on. Hold out fewer domains, or use a data set with examples "
        "outside its own validation and test splits."
    )


def split_clients(
    dataset: Dataset,
    parts: list[np.ndarray],
    fractions: Fractions,
    generators: Sequence[np.random.Generator],
) -> list[ClientSplit]:
    """Each client's positions as train, valid and test: by the data set's own split where it has one, else drawn."""
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
    """The splits, in which these clients, who never train, have all but their validation examples as test examples."""
    moved = list(splits)
    for i in clients:
        train, valid, test = splits[i]
        moved[i] = ClientSplit(train[:0], valid, np.sort(np.concatenate([train, test])))
    return moved


def equalize_sizes(
    splits: list[ClientSplit], clients: np.ndarray, generators: Sequence[np.random.Generator]
) -> list[ClientSplit]:
    """The training positions of these clients cut, at random, to as many as the smallest of them has.

    Raises InputError where that is none.
    """
    least = min(len(splits[i].train) for i in clients)
    if least == 0:
        raise InputError("equal_train: a client has no training examples. Use fewer clients, or leave equal_train out.")
    cut = list(splits)
    for i, rng in zip(clients, generators, strict=True):
        cut[i] = splits[i]._replace(train=np.sort(rng.permutation(splits[i].train)[:least]))
    return cut

"""What clients do not train on: unseen domains, the common test set, and each client's own validation and test."""

from collections.abc import Sequence

import numpy as np

from fedjax_het.data import rows
from fedjax_het.data.dataset import Dataset
from fedjax_het.errors import InputError, nearest


def unseen_positions(dataset: Dataset, names: Sequence[str]) -> dict[str, np.ndarray]:
    """The positions of these domains, each by its name. Raises InputError for a domain that is not there."""
    names = (names,) if isinstance(names, str) else tuple(names)
    for name in names:
        if name not in dataset.domain_names:
            raise InputError(
                f"unseen_domains: {dataset.name} has no domain '{name}'. {nearest(name, dataset.domain_names)}"
            )
    return {name: np.flatnonzero(dataset.domains == dataset.domain_names.index(name)) for name in names}


def hold_out(
    dataset: Dataset, unseen: dict[str, np.ndarray], test_fraction: float, local_test: bool, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """(positions of the common test set, positions to distribute). With local_test nothing is held out in common.

    Raises InputError where nothing is left to train on, and for local_test without an own test split.
    """
    is_seen = np.ones(len(dataset.labels), bool)
    for positions in unseen.values():
        is_seen[positions] = False
    is_test = dataset.is_test & is_seen
    if local_test:
        if not is_test.any():
            raise InputError(
                f"local_test: {dataset.name} has no test split of its own. Leave local_test out: client_test_fraction "
                "draws one."
            )
        return np.zeros(0, int), _not_empty(dataset, np.flatnonzero(is_seen))
    if not is_test.any():
        seen = np.flatnonzero(is_seen & ~dataset.is_valid)
        classes = np.zeros(len(seen), int) if dataset.is_segmentation else dataset.labels[seen]
        strata = dataset.domains[seen] * dataset.num_classes + classes
        is_test[seen] = rows.draw_stratified(strata, test_fraction, rng)
    return np.flatnonzero(is_test), _not_empty(dataset, np.flatnonzero(is_seen & ~is_test))


def _not_empty(dataset: Dataset, rest: np.ndarray) -> np.ndarray:
    if dataset.splits["train"][rest].any():
        return rest
    raise InputError(
        f"{dataset.name}: no examples left to train on. Hold out fewer domains, or use a data set with examples "
        "outside its own validation and test splits."
    )


def divide(
    dataset: Dataset,
    parts: list[np.ndarray],
    fractions: tuple[float, float],
    local_test: bool,
    generators: Sequence[np.random.Generator],
) -> list[rows.Split]:
    """Each client's positions as train, valid and test: by the data set's own split where it has one, else drawn.

    fractions: of validation and test, where they are drawn.
    """
    has_valid = any(dataset.is_valid[part].any() for part in parts)
    drawn = (0.0 if has_valid else fractions[0], 0.0 if local_test else fractions[1])
    splits = []
    for part, rng in zip(parts, generators, strict=True):
        is_valid, is_test = dataset.is_valid[part], dataset.is_test[part]
        split = rows.split(part[~(is_valid | is_test)], *drawn, rng)
        if has_valid:
            split = split._replace(valid=part[is_valid])
        if local_test:
            split = split._replace(test=part[is_test])
        splits.append(split)
    return splits


def equalise(
    splits: list[rows.Split], clients: np.ndarray, generators: Sequence[np.random.Generator]
) -> list[rows.Split]:
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

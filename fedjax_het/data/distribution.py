"""From a data set and a partition to a federation: what is held out, who has what, who never trains."""

from collections import Counter
from collections.abc import Sequence

import numpy as np

from fedjax_het.data import rows
from fedjax_het.data.augmentation import Augmentation
from fedjax_het.data.dataset import Dataset
from fedjax_het.data.federation import Federation
from fedjax_het.data.partition import Labelled, Partition
from fedjax_het.data.preparation import Preparation, moments
from fedjax_het.errors import InputError, nearest
from fedjax_het.types import ClientData, Examples

# Each decision draws from its own stream, so that changing one setting leaves the other decisions as they were.
_TEST, _PARTITION, _NEWCOMERS, _SPLIT = range(4)


def federate(
    dataset: Dataset,
    partition: Partition,
    num_clients: int,
    *,
    seed: int = 0,
    valid_fraction: float = 0.0,
    client_test_fraction: float = 0.2,
    test_fraction: float = 0.2,
    unseen_domains: Sequence[str] = (),
    unseen_clients: int = 0,
    standardise: bool = False,
    augment: Augmentation | None = None,
) -> Federation:
    """Distribute a data set over clients.

    1. Examples of `unseen_domains` (names, or one name) are held out altogether: federation.unseen, a domain each.
    2. The common test set is the data set's own test split of the other domains if it has one; else `test_fraction` of
       the other examples, of every domain and class alike (0: none).
    3. `partition` hands the rest to num_clients + unseen_clients clients, of which `unseen_clients`, chosen at random,
       become federation.newcomers: they have data and never train.
    4. Each client's examples are cut at random into train, valid (`valid_fraction`) and test (`client_test_fraction`);
       it keeps at least one for training.

    standardise: (x - mean) / deviation a channel, of the training examples of the clients that train.
    augment: what is done to training images before that, see `augmentation.images`; None: nothing.
    The same seed gives the same federation; `federation.fingerprint` tells whether two machines agree.
    Raises InputError for settings that cannot be, unknown domains, and as the partition does.
    """
    _check_settings(dataset, num_clients, seed, valid_fraction, client_test_fraction, test_fraction, unseen_clients)
    unseen = _positions_of_domains(dataset, unseen_domains)
    test, rest = _hold_out(dataset, unseen, test_fraction, np.random.default_rng([seed, _TEST]))
    everyone = num_clients + unseen_clients
    parts = _distribute(dataset, rest, partition, everyone, np.random.default_rng([seed, _PARTITION]))
    names = _names(dataset, parts)
    splits = [
        rows.split(part, valid_fraction, client_test_fraction, np.random.default_rng([seed, _SPLIT, i]))
        for i, part in enumerate(parts)
    ]
    mixed = np.random.default_rng([seed, _NEWCOMERS]).permutation(everyone)
    trained, new = np.sort(mixed[:num_clients]), np.sort(mixed[num_clients:])
    examples = Examples(dataset.inputs, dataset.labels)
    training = np.concatenate([splits[i].train for i in trained])
    return Federation(
        name=dataset.name,
        data=_client_data(examples, splits, trained),
        newcomers=_client_data(examples, splits, new) if unseen_clients else None,
        test=rows.single(test) if len(test) else None,
        unseen={name: rows.single(positions) for name, positions in unseen.items()},
        class_names=dataset.class_names,
        client_names=tuple(names[i] for i in trained),
        newcomer_names=tuple(names[i] for i in new),
        prepare=Preparation(moments(dataset.inputs, training) if standardise else None, augment),
    )


def _positions_of_domains(dataset: Dataset, names: Sequence[str]) -> dict[str, np.ndarray]:
    names = (names,) if isinstance(names, str) else tuple(names)
    for name in names:
        if name not in dataset.domain_names:
            raise InputError(
                f"unseen_domains: {dataset.name} has no domain '{name}'. {nearest(name, dataset.domain_names)}"
            )
    return {name: np.flatnonzero(dataset.domains == dataset.domain_names.index(name)) for name in names}


def _hold_out(
    dataset: Dataset, unseen: dict[str, np.ndarray], test_fraction: float, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """(positions of the common test set, positions to distribute)."""
    is_seen = np.ones(len(dataset.labels), bool)
    for positions in unseen.values():
        is_seen[positions] = False
    is_test = dataset.is_test & is_seen
    if not is_test.any():
        seen = np.flatnonzero(is_seen)
        strata = dataset.domains[seen] * dataset.num_classes + dataset.labels[seen]
        is_test[seen] = rows.draw_stratified(strata, test_fraction, rng)
    rest = np.flatnonzero(is_seen & ~is_test)
    if len(rest) == 0:
        raise InputError(
            f"{dataset.name}: no examples left to train on. Hold out fewer domains, or use a data set with examples "
            "outside its own test split."
        )
    return np.flatnonzero(is_test), rest


def _distribute(
    dataset: Dataset, rest: np.ndarray, partition: Partition, num_clients: int, rng: np.random.Generator
) -> list[np.ndarray]:
    parts = partition(Labelled(dataset.labels[rest], dataset.domains[rest], dataset.num_classes), num_clients, rng)
    given = np.sort(np.concatenate(parts)) if len(parts) else np.zeros(0, int)
    if len(parts) != num_clients or not np.array_equal(given, np.arange(len(rest))):
        raise InputError(
            f"the partition made {len(parts)} parts with {len(given)} positions in all for {num_clients} clients and "
            f"{len(rest)} examples. Let it give every position to exactly one client."
        )
    return [rest[part] for part in parts]


def _client_data(examples: Examples, splits: list[rows.Split], chosen: np.ndarray) -> ClientData:
    return ClientData(examples, *(rows.table([splits[i][part] for i in chosen]) for part in range(3)))


def _names(dataset: Dataset, parts: list[np.ndarray]) -> list[str]:
    """ "client_003"; or where each client is of one domain, "sketch", or "sketch_0", "sketch_1" if they share it."""
    digits = max(3, len(str(len(parts) - 1)))
    owned = [np.unique(dataset.domains[part]) for part in parts]
    if len(dataset.domain_names) == 1 or any(len(domains) != 1 for domains in owned):
        return [f"client_{i:0{digits}d}" for i in range(len(parts))]
    domains = [dataset.domain_names[int(each[0])] for each in owned]
    numbers = {domain: iter(range(num)) for domain, num in Counter(domains).items() if num > 1}
    return [f"{domain}_{next(numbers[domain])}" if domain in numbers else domain for domain in domains]


def _check_settings(
    dataset: Dataset,
    num_clients: int,
    seed: int,
    valid_fraction: float,
    client_test_fraction: float,
    test_fraction: float,
    unseen_clients: int,
) -> None:
    for name, value, least in (
        ("num_clients", num_clients, 1),
        ("unseen_clients", unseen_clients, 0),
        ("seed", seed, 0),
    ):
        if not isinstance(value, int | np.integer) or value < least:
            raise InputError(f"federate {dataset.name}: {name} is {value!r}. Give a whole number, {least} or more.")
    fractions = {
        "valid_fraction": valid_fraction,
        "client_test_fraction": client_test_fraction,
        "test_fraction": test_fraction,
        "valid_fraction + client_test_fraction": valid_fraction + client_test_fraction,
    }
    for name, value in fractions.items():
        if not 0 <= value < 1:
            raise InputError(f"federate {dataset.name}: {name} is {value}. Give a part below 1, such as 0.2, or 0.")

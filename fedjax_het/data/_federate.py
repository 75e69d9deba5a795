"""From a data set and a partition to a federation: what is held out, who has what, who never trains."""

from collections import Counter
from collections.abc import Sequence
from typing import Literal

import numpy as np

from fedjax_het.data import splitting
from fedjax_het.data.augmentation import Augmentation
from fedjax_het.data.dataset import Dataset
from fedjax_het.data.federation import Federation, Fractions
from fedjax_het.data.partition import LabeledExamples, Partition
from fedjax_het.data.preparation import Preparation, moments
from fedjax_het.errors import InputError
from fedjax_het.types import ClientData, Examples
from fedjax_het.validation import Count, CountOrZero, FractionBelowOne, Seed, validate_arguments

# Each decision draws from its own stream, so that changing one setting leaves the other decisions as they were.
_TEST, _PARTITION, _NEWCOMERS, _SPLIT, _EQUAL = range(5)


@validate_arguments
def federate(
    dataset: Dataset,
    partition: Partition,
    num_clients: Count,
    *,
    seed: Seed = 0,
    valid_fraction: FractionBelowOne = 0.0,
    client_test_fraction: FractionBelowOne | Literal["auto"] = "auto",
    test_fraction: FractionBelowOne = 0.2,
    unseen_domains: Sequence[str] = (),
    unseen_clients: CountOrZero = 0,
    local_test: bool = False,
    equal_train: bool = False,
    standardise: bool = False,
    augment: Augmentation | None = None,
) -> Federation:
    """Distribute a data set over clients.

    1. Examples of `unseen_domains` (names, or one name) are held out altogether, whatever split they are of:
       federation.unseen, a domain each.
    2. The common test set is the data set's own test split of the other domains if it has one; else `test_fraction` of
       the other examples that are not of its own validation split, of every domain and class alike (0: none).
    3. `partition` hands the rest to num_clients + unseen_clients clients, of which `unseen_clients`, chosen at random,
       become federation.newcomers: they have data and never train.
    4. Each client's examples are cut at random into train, valid (`valid_fraction`) and test (`client_test_fraction`);
       it keeps at least one for training. Where the data set has a validation split of its own, a client's valid are
       those of its examples instead, and it may be left without any to train on.

    client_test_fraction: "auto" is 0 where the data set has a test split of its own, and 0.2 where it has none.
    Where it comes to 0, newcomers, who never train, have all their examples as test examples.
    local_test: there is no common test set; the own test split is distributed with the rest, and a client's test are
    those of its examples (with by_domain: each site's own test set).
    equal_train: the training examples of every client that trains are cut, at random, to as many as the smallest has.
    standardise: (x - mean) / deviation a channel, of the training examples of the clients that train.
    augment: what is done to training images before that, see `augmentation.images`; None: nothing.
    The same seed gives the same federation; `federation.fingerprint` tells whether two machines agree.
    Raises InputError for settings that cannot be, unknown domains, and as the partition does.
    """
    unseen = splitting.find_unseen_domains(dataset, unseen_domains)
    if client_test_fraction == splitting.AUTO:
        has_own_test = splitting.has_own_split(dataset.is_test, dataset, unseen)
        client_test_fraction = splitting.default_client_test_fraction(has_own_test)
    if valid_fraction + client_test_fraction >= 1:
        raise InputError(
            f"valid_fraction: {valid_fraction} and client_test_fraction: {client_test_fraction} leave nothing to train "
            "on. Let them come to less than 1."
        )
    asked = Fractions(test_fraction, client_test_fraction, valid_fraction)
    fractions = splitting.resolve_fractions(dataset, unseen, asked, local_test)
    test, rest = splitting.hold_out(dataset, unseen, fractions, local_test, np.random.default_rng([seed, _TEST]))
    everyone = num_clients + unseen_clients
    parts = _distribute_examples(dataset, rest, partition, everyone, np.random.default_rng([seed, _PARTITION]))
    names = _name_clients(dataset, parts)
    streams = [np.random.default_rng([seed, _SPLIT, i]) for i in range(everyone)]
    splits = splitting.split_clients(dataset, parts, fractions, streams)
    mixed = np.random.default_rng([seed, _NEWCOMERS]).permutation(everyone)
    trained, new = np.sort(mixed[:num_clients]), np.sort(mixed[num_clients:])
    if fractions.client_test == 0:
        splits = splitting.move_train_to_test(splits, new)
    if equal_train:
        splits = splitting.equalize_sizes(splits, trained, [np.random.default_rng([seed, _EQUAL, i]) for i in trained])
    examples = Examples(dataset.inputs, dataset.labels)
    training = np.concatenate([splits[i].train for i in trained])
    return Federation(
        name=dataset.name,
        data=_gather_client_data(examples, splits, trained),
        newcomers=_gather_client_data(examples, splits, new) if unseen_clients else None,
        test=splitting.to_rows(test) if len(test) else None,
        unseen={name: splitting.to_rows(positions) for name, positions in unseen.items()},
        class_names=dataset.class_names,
        client_names=tuple(names[i] for i in trained),
        newcomer_names=tuple(names[i] for i in new),
        prepare=Preparation(moments(dataset.inputs, training) if standardise else None, augment),
        fractions=fractions,
    )


def _distribute_examples(
    dataset: Dataset, rest: np.ndarray, partition: Partition, num_clients: int, rng: np.random.Generator
) -> list[np.ndarray]:
    if dataset.num_classes < 2:
        raise InputError(
            f"{dataset.name}: all labels are of one class, '{dataset.class_names[0]}'. Give data of several."
        )
    if dataset.is_segmentation:
        examples = LabeledExamples(np.zeros(len(rest), np.int32), dataset.domains[rest], 0)
    else:
        examples = LabeledExamples(dataset.labels[rest], dataset.domains[rest], dataset.num_classes)
    parts = partition(examples, num_clients, rng)
    given = np.sort(np.concatenate(parts)) if len(parts) else np.zeros(0, int)
    if len(parts) != num_clients or not np.array_equal(given, np.arange(len(rest))):
        raise InputError(
            f"the partition made {len(parts)} parts with {len(given)} positions in all for {num_clients} clients and "
            f"{len(rest)} examples. Let it give every position to exactly one client."
        )
    return [rest[part] for part in parts]


def _gather_client_data(examples: Examples, splits: list[splitting.ClientSplit], chosen: np.ndarray) -> ClientData:
    return ClientData(examples, *(splitting.pad_lists([splits[i][part] for i in chosen]) for part in range(3)))


def _name_clients(dataset: Dataset, parts: list[np.ndarray]) -> list[str]:
    """ "client_003"; or where each client is of one domain, "sketch", or "sketch_0", "sketch_1" if they share it."""
    digits = max(3, len(str(len(parts) - 1)))
    owned = [np.unique(dataset.domains[part]) for part in parts]
    if len(dataset.domain_names) == 1 or any(len(domains) != 1 for domains in owned):
        return [f"client_{i:0{digits}d}" for i in range(len(parts))]
    domains = [dataset.domain_names[int(each[0])] for each in owned]
    numbers = {domain: iter(range(num)) for domain, num in Counter(domains).items() if num > 1}
    return [f"{domain}_{next(numbers[domain])}" if domain in numbers else domain for domain in domains]

"""Partitions in which clients differ in their classes."""

import numpy as np

from fedjax_het.data import proportions
from fedjax_het.data.labelled import Labelled, Partition, check_classes, check_enough, deal
from fedjax_het.errors import InputError
from fedjax_het.validation import Count, CountOrZero, Positive, validate_arguments


@validate_arguments
def dirichlet(alpha: Positive, equal_sizes: bool = False, min_examples: CountOrZero = 1) -> Partition:
    """Label skew: how much of which class a client has follows Dirichlet(alpha).

    alpha: small, a client has few classes; large, all clients have the same mix. 0.1 to 1 in most papers.
    Without `equal_sizes`: for every class, its shares over the clients ~ Dirichlet(alpha), so sizes differ too; clients
    with fewer than `min_examples` are given the difference by the largest ones (the authors draw again until all have
    10). With `equal_sizes`: every client has n / clients examples to within one, and asks for classes in proportions
    ~ Dirichlet(alpha); what a class cannot give is asked from the client's other classes (`proportions.fill`), so all
    clients bear the totals alike, not only the last ones.
    Raises InputError where alpha is not above 0, there are fewer than min_examples a client, or labels are masks.
    Hsu et al. 2019, arXiv:1909.06335; NIID-Bench, Li et al., ICDE 2022, arXiv:2102.02079
    """

    def partition(examples: Labelled, num_clients: int, rng: np.random.Generator) -> list[np.ndarray]:
        check_classes(examples)
        check_enough(len(examples.labels), num_clients, min_examples)
        count = _equal_counts if equal_sizes else _ragged_counts
        parts = deal(examples, count(examples, num_clients, alpha, rng), rng)
        return [np.sort(part) for part in proportions.top_up(parts, min_examples)]

    return partition


def _ragged_counts(examples: Labelled, num_clients: int, alpha: float, rng: np.random.Generator) -> np.ndarray:
    supplies = np.bincount(examples.labels, minlength=examples.num_classes)
    shares = proportions.dirichlet(alpha, (examples.num_classes, num_clients), rng)
    columns = [proportions.whole(*each, rng.random()) for each in zip(shares, supplies, strict=True)]
    return np.stack(columns, axis=1)


def _equal_counts(examples: Labelled, num_clients: int, alpha: float, rng: np.random.Generator) -> np.ndarray:
    wishes = proportions.log_dirichlet(alpha, (num_clients, examples.num_classes), rng)
    quotas = rng.permutation(proportions.even(len(examples.labels), num_clients))
    return proportions.fill(wishes, quotas, np.bincount(examples.labels, minlength=examples.num_classes))


@validate_arguments
def shards(classes_per_client: Count) -> Partition:
    """Every client has exactly `classes_per_client` classes, 2 in McMahan et al.

    Each class is cut into shards, more for a larger class, so that shards are of similar size; each client takes
    `classes_per_client` shards of different classes, at random. (McMahan et al. cut the examples sorted by label at
    even steps, where a shard may hold two classes and a client fewer or more than it should.)
    Raises InputError where clients * classes_per_client cannot be shards of the classes that there are, and for masks.
    McMahan et al., AISTATS 2017. arXiv:1602.05629
    """

    def partition(examples: Labelled, num_clients: int, rng: np.random.Generator) -> list[np.ndarray]:
        check_classes(examples)
        check_enough(len(examples.labels), num_clients, least=1)
        sizes = np.bincount(examples.labels, minlength=examples.num_classes)
        counts = np.zeros((num_clients, examples.num_classes), int)
        left = np.full(num_clients, classes_per_client)
        num_shards = _num_shards(sizes, num_clients, classes_per_client)
        for label in rng.permutation(examples.num_classes):
            # Those who lack most come first, at random among equals: then every client can always be served.
            owners = np.lexsort((rng.random(num_clients), -left))[: num_shards[label]]
            counts[owners, label] = proportions.even(sizes[label], max(1, len(owners)))[: len(owners)]
            left[owners] -= 1
        return [np.sort(part) for part in deal(examples, counts, rng)]

    return partition


def _num_shards(sizes: np.ndarray, num_clients: int, classes_per_client: int) -> np.ndarray:
    present, num_shards = np.flatnonzero(sizes), num_clients * classes_per_client
    most = np.minimum(sizes[present], num_clients)
    if not len(present) <= num_shards <= most.sum():
        raise InputError(
            f"shards: {num_clients} clients of {classes_per_client} classes each take {num_shards} shards, but the "
            f"{len(present)} classes that there are make {len(present)} to {most.sum()}. Change classes_per_client or "
            "the number of clients."
        )
    result = np.zeros(len(sizes), int)
    result[present] = proportions.apportion(sizes[present], num_shards, most)
    return result

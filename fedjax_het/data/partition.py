"""Partitions: rules that assign examples to clients by chance or by class."""

import numpy as np

from fedjax_het.data import rounding
from fedjax_het.data.assignment import (
    LabeledExamples,
    Partition,
    ResamplingPartition,
    assign_classes,
    check_enough_examples,
    check_has_classes,
    split_by_sizes,
)
from fedjax_het.errors import InputError
from fedjax_het.validation import Count, CountOrZero, Positive, validate_arguments


def iid() -> Partition:
    """Distribute shuffled examples evenly over clients; sizes differ by at most one.

    Raises:
        InputError: When the partition is applied, there are fewer examples than clients.
    """

    def partition(examples: LabeledExamples, num_clients: int, rng: np.random.Generator) -> list[np.ndarray]:
        num = len(examples.labels)
        check_enough_examples(num, num_clients, min_examples=1)
        parts = split_by_sizes(rng.permutation(num), rounding.split_evenly(num, num_clients))
        return [np.sort(part) for part in parts]

    return partition


@validate_arguments
def dirichlet(alpha: Positive, equal_sizes: bool = False, min_examples: CountOrZero = 1) -> Partition:
    """Label skew: the classes of clients follow Dirichlet(alpha).

    Args:
        alpha: The concentration. Small: clients have few classes. Large: all clients have the same class
            distribution. Most papers use 0.1 to 1.
        equal_sizes: False: the client shares of each class are ~ Dirichlet(alpha), so sizes differ too. True: each
            client has n / clients examples to within one, with class proportions ~ Dirichlet(alpha); if a class runs
            out, the client's other classes replace it (`rounding.fill_quotas`), which affects all clients equally,
            not only the last ones.
        min_examples: Smaller clients receive examples from the largest ones up to this number. (NIID-Bench resamples
            until all clients have 10.)

    Raises:
        InputError: `alpha` is not positive; when the partition is applied, there are fewer than `min_examples` examples
            per client, or labels are masks.

    References:
        Hsu et al. 2019, arXiv:1909.06335; NIID-Bench, Li et al., ICDE 2022, arXiv:2102.02079
    """

    def partition(examples: LabeledExamples, num_clients: int, rng: np.random.Generator) -> list[np.ndarray]:
        check_has_classes(examples)
        check_enough_examples(len(examples.labels), num_clients, min_examples)
        draw = _draw_equal_sizes if equal_sizes else _draw_class_shares
        supplies = np.bincount(examples.labels, minlength=examples.num_classes)
        parts = assign_classes(examples, draw(supplies, num_clients, alpha, rng), rng)
        return [np.sort(part) for part in rounding.enforce_minimum(parts, min_examples)]

    return partition


def _draw_class_shares(supplies: np.ndarray, num_clients: int, alpha: float, rng: np.random.Generator) -> np.ndarray:
    """[client, class] numbers of examples, by sampling the client shares of each class."""
    shares = rounding.sample_dirichlet(alpha, (len(supplies), num_clients), rng)
    columns = [rounding.round_preserving_sum(*column, rng.random()) for column in zip(shares, supplies, strict=True)]
    return np.stack(columns, axis=1)


def _draw_equal_sizes(supplies: np.ndarray, num_clients: int, alpha: float, rng: np.random.Generator) -> np.ndarray:
    """[client, class] numbers of examples, by sampling the class proportions of each client."""
    preferences = rounding.sample_log_dirichlet(alpha, (num_clients, len(supplies)), rng)
    quotas = rng.permutation(rounding.split_evenly(int(supplies.sum()), num_clients))
    return rounding.fill_quotas(preferences, quotas, supplies)


@validate_arguments
def resampled_dirichlet(alpha: Positive, examples_per_client: Count) -> Partition:
    """Label skew for populations of any size: each client samples its examples with replacement.

        p_i ~ Dirichlet(alpha) over the classes;  the n examples of client i are of class c with probability p_ic

    Clients share examples, so there can be more clients than examples. The sample of a client is a function of the seed
    and its id, independent of the number of clients: a larger population extends a smaller one.

    Args:
        alpha: The concentration, see `dirichlet`.
        examples_per_client: n.

    Raises:
        InputError: A number is out of range; when the partition is applied, labels are masks, or clients hold out
            examples, which other clients would train on.
    """

    def partition(examples: LabeledExamples, num_clients: int, rng: np.random.Generator) -> list[np.ndarray]:
        check_has_classes(examples)
        seed = int(rng.integers(2**63))
        pools = [np.flatnonzero(examples.labels == label) for label in range(examples.num_classes)]
        present = np.flatnonzero([len(pool) for pool in pools])

        def draw_client(client: int) -> np.ndarray:
            own = np.random.default_rng([seed, client])
            shares = rounding.sample_dirichlet(alpha, (1, len(present)), own)[0]
            counts = own.multinomial(examples_per_client, shares / shares.sum())
            chosen = zip(present[counts > 0], counts[counts > 0], strict=True)
            return np.sort(
                np.concatenate([pools[label][own.integers(len(pools[label]), size=n)] for label, n in chosen])
            )

        return [draw_client(client) for client in range(num_clients)]

    return ResamplingPartition(partition)


@validate_arguments
def shards(classes_per_client: Count) -> Partition:
    """Label skew: each client has exactly `classes_per_client` classes.

    Each class is split into shards of similar size, so larger classes have more shards; each client gets random shards
    of `classes_per_client` different classes. (McMahan et al. split the examples sorted by label into equal shards, so
    a shard may contain two classes, and a client more or fewer classes than intended.)

    Args:
        classes_per_client: The number of classes per client; 2 in McMahan et al.

    Raises:
        InputError: When the partition is applied, the classes cannot be split into clients * classes_per_client
            shards, or labels are masks.

    References:
        McMahan et al., AISTATS 2017. arXiv:1602.05629
    """

    def partition(examples: LabeledExamples, num_clients: int, rng: np.random.Generator) -> list[np.ndarray]:
        check_has_classes(examples)
        check_enough_examples(len(examples.labels), num_clients, min_examples=1)
        sizes = np.bincount(examples.labels, minlength=examples.num_classes)
        counts = np.zeros((num_clients, examples.num_classes), int)
        missing = np.full(num_clients, classes_per_client)
        num_shards = _count_shards(sizes, num_clients, classes_per_client)
        for label in rng.permutation(examples.num_classes):
            # Clients that lack the most classes come first, ties at random; all clients can then be served.
            owners = np.lexsort((rng.random(num_clients), -missing))[: num_shards[label]]
            counts[owners, label] = rounding.split_evenly(sizes[label], max(1, len(owners)))[: len(owners)]
            missing[owners] -= 1
        return [np.sort(part) for part in assign_classes(examples, counts, rng)]

    return partition


def _count_shards(sizes: np.ndarray, num_clients: int, classes_per_client: int) -> np.ndarray:
    """[class] the number of shards of each class."""
    present, num_shards = np.flatnonzero(sizes), num_clients * classes_per_client
    max_shards = np.minimum(sizes[present], num_clients)
    if not len(present) <= num_shards <= max_shards.sum():
        raise InputError(
            f"shards: {num_clients} clients of {classes_per_client} classes each take {num_shards} shards, but the "
            f"{len(present)} classes that there are make {len(present)} to {max_shards.sum()}. Change "
            "classes_per_client or the number of clients."
        )
    result = np.zeros(len(sizes), int)
    result[present] = rounding.apportion(sizes[present], num_shards, max_shards)
    return result


@validate_arguments
def quantity_skew(alpha: Positive, min_examples: CountOrZero = 1) -> Partition:
    """Quantity skew: clients have the same distribution, with sizes proportional to Dirichlet(alpha).

    Args:
        alpha: The concentration. Small: a few clients have nearly all examples. Large: equal sizes. NIID-Bench uses
            0.5, written q ~ Dir(beta).
        min_examples: Smaller clients receive examples from the largest ones up to this number.

    Raises:
        InputError: `alpha` is not positive; when the partition is applied, there are fewer than `min_examples` examples
            per client.

    References:
        NIID-Bench, Li et al., ICDE 2022. arXiv:2102.02079
    """

    def partition(examples: LabeledExamples, num_clients: int, rng: np.random.Generator) -> list[np.ndarray]:
        num = len(examples.labels)
        check_enough_examples(num, num_clients, min_examples)
        shares = rounding.sample_dirichlet(alpha, (1, num_clients), rng)[0]
        parts = split_by_sizes(rng.permutation(num), rounding.round_preserving_sum(shares, num))
        return [np.sort(part) for part in rounding.enforce_minimum(parts, min_examples)]

    return partition

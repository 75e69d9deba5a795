"""Partitions by domain and by quantile, and the registry of all partitions."""

import numpy as np

from fedjax_het.data import listing, rounding
from fedjax_het.data.assignment import LabeledExamples, Partition, ResamplingPartition, check_enough_examples
from fedjax_het.data.partition import dirichlet, iid, quantity_skew, resampled_dirichlet, shards
from fedjax_het.errors import InputError
from fedjax_het.validation import Count, CountOrZero, Positive, validate_arguments


def within_domains(inner: Partition) -> Partition:
    """Feature skew: each client belongs to one domain; `inner` partitions a domain among its clients.

    Domains have equal numbers of clients; if these do not divide evenly, the largest domains have one more. Clients are
    numbered domain by domain.

    Args:
        inner: The partition of each domain's examples.

    Raises:
        InputError: When the partition is applied, there are fewer clients than domains, or `inner` raises InputError.
    """

    def partition(examples: LabeledExamples, num_clients: int, rng: np.random.Generator) -> list[np.ndarray]:
        present, sizes = np.unique(examples.domains, return_counts=True)
        if num_clients < len(present):
            raise InputError(
                f"{num_clients} clients for {len(present)} domains. Give at least one client per domain, or hold "
                "domains out with unseen_domains."
            )
        shares = np.zeros(len(present), int)
        shares[np.argsort(-sizes, kind="stable")] = rounding.split_evenly(num_clients, len(present))
        parts = []
        for domain, num in zip(present, shares, strict=True):
            inside = np.flatnonzero(examples.domains == domain)
            try:
                parts += [inside[indices] for indices in inner(examples.select(inside), int(num), rng)]
            except InputError as error:
                raise InputError(f"domain {domain}: {error}") from error
        return parts

    return ResamplingPartition(partition) if isinstance(inner, ResamplingPartition) else partition


def by_domain() -> Partition:
    """Feature skew: one domain per client; with more clients than domains, domains are split evenly at random.

    Raises:
        InputError: When the partition is applied, there are fewer clients than domains.
    """
    return within_domains(iid())


@validate_arguments
def domain_dirichlet(alpha: Positive, min_examples: CountOrZero = 1) -> Partition:
    """Feature and label skew: each client belongs to one domain, whose examples are partitioned by `dirichlet`.

    Args:
        alpha: The concentration, see `dirichlet`.
        min_examples: Smaller clients receive examples from the largest ones of their domain up to this number.

    Raises:
        InputError: As `dirichlet` and `by_domain`.
    """
    return within_domains(dirichlet(alpha, min_examples=min_examples))


def within_quantiles(inner: Partition, num_quantiles: int, target: int = 0) -> Partition:
    """Label skew of numbers: `inner` partitions the examples by quantiles of a target as if these were classes.

    Equal numbers may lie in neighboring quantiles, so that quantiles have equal sizes to within one.

    Args:
        inner: The partition.
        num_quantiles: The number of quantiles.
        target: The index of the target.

    Raises:
        InputError: When the partition is applied, labels are no numbers, there is no such target, or `inner` raises
            InputError.
    """

    def partition(examples: LabeledExamples, num_clients: int, rng: np.random.Generator) -> list[np.ndarray]:
        numbers = examples.numbers
        if numbers is None:
            raise InputError("these examples have no numbers as labels. Use iid, by_domain, or dirichlet for classes.")
        if target >= numbers.shape[1]:
            raise InputError(f"target: there is no target {target}; the last is {numbers.shape[1] - 1}.")
        ranks = np.empty(len(numbers), np.int64)
        ranks[np.argsort(numbers[:, target], kind="stable")] = np.arange(len(numbers))
        quantiles = (ranks * num_quantiles // len(numbers)).astype(np.int32)
        return inner(examples._replace(labels=quantiles, num_classes=num_quantiles), num_clients, rng)

    return partition


@validate_arguments
def by_quantile(target: CountOrZero = 0) -> Partition:
    """Label skew of numbers: the clients' examples are consecutive ranges of a target, of equal sizes to within one.

    Args:
        target: The index of the target.

    Raises:
        InputError: As `within_quantiles`.
    """

    def partition(examples: LabeledExamples, num_clients: int, rng: np.random.Generator) -> list[np.ndarray]:
        check_enough_examples(len(examples.labels), num_clients, min_examples=1)
        return within_quantiles(_by_class, num_clients, target)(examples, num_clients, rng)

    return partition


def _by_class(examples: LabeledExamples, num_clients: int, rng: np.random.Generator) -> list[np.ndarray]:
    return [np.flatnonzero(examples.labels == client) for client in range(num_clients)]


@validate_arguments
def quantile_dirichlet(
    alpha: Positive, num_quantiles: Count = 10, target: CountOrZero = 0, min_examples: CountOrZero = 1
) -> Partition:
    """Label skew of numbers: the quantiles of a target that clients have follow Dirichlet(alpha).

    Args:
        alpha: The concentration, see `dirichlet`.
        num_quantiles: The number of quantiles.
        target: The index of the target.
        min_examples: Smaller clients receive examples from the largest ones up to this number.

    Raises:
        InputError: As `within_quantiles` and `dirichlet`.
    """
    return within_quantiles(dirichlet(alpha, min_examples=min_examples), num_quantiles, target)


_FACTORIES = (iid, dirichlet, resampled_dirichlet, shards, quantity_skew, by_domain, domain_dirichlet)
PARTITIONS = {factory.__name__: factory for factory in (*_FACTORIES, by_quantile, quantile_dirichlet)} | {
    "listed": listing.listed_clients
}

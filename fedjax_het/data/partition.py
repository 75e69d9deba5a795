"""What a partition sees and makes, and what every partition needs: checks, cuts and deals."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from fedjax_het.data import rounding
from fedjax_het.errors import InputError
from fedjax_het.validation import Count, CountOrZero, Positive, validate_arguments


class LabeledExamples(NamedTuple):
    """What a partition may look at."""

    labels: np.ndarray  # [n] int32
    domains: np.ndarray  # [n] int32
    num_classes: int  # 0: examples have masks and no class, and their labels are all 0


Partition = Callable[[LabeledExamples, int, np.random.Generator], list[np.ndarray]]
"""(examples, num_clients, generator) -> for each client its sorted positions in the examples."""


def split_by_sizes(line: np.ndarray, sizes: np.ndarray, is_sorted: bool = True) -> list[np.ndarray]:
    """`line` in consecutive pieces of these sizes."""
    parts = np.split(line, np.cumsum(sizes)[:-1])
    return [np.sort(part) for part in parts] if is_sorted else parts


def assign_classes(examples: LabeledExamples, counts: np.ndarray, rng: np.random.Generator) -> list[np.ndarray]:
    """Positions for each client, counts[client, class] of each class, in random order."""
    hands = [[] for _ in counts]
    for label in range(examples.num_classes):
        mixed = rng.permutation(np.flatnonzero(examples.labels == label))
        for hand, piece in zip(hands, split_by_sizes(mixed, counts[:, label], is_sorted=False), strict=True):
            hand.append(piece)
    return [rng.permutation(np.concatenate(hand)) for hand in hands]


def check_has_classes(examples: LabeledExamples) -> None:
    """Raise InputError where examples have no class of their own, which a skew of classes could go by."""
    if examples.num_classes == 0:
        raise InputError(
            "these examples have masks, not a class each. Use by_domain, iid or quantity_skew as the partition."
        )


def check_enough_examples(num: int, num_clients: int, least: int) -> None:
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

    def partition(examples: LabeledExamples, num_clients: int, rng: np.random.Generator) -> list[np.ndarray]:
        check_has_classes(examples)
        check_enough_examples(len(examples.labels), num_clients, min_examples)
        count = _draw_equal_size_counts if equal_sizes else _draw_counts
        parts = assign_classes(examples, count(examples, num_clients, alpha, rng), rng)
        return [np.sort(part) for part in rounding.enforce_minimum(parts, min_examples)]

    return partition


def _draw_counts(examples: LabeledExamples, num_clients: int, alpha: float, rng: np.random.Generator) -> np.ndarray:
    supplies = np.bincount(examples.labels, minlength=examples.num_classes)
    shares = rounding.sample_dirichlet(alpha, (examples.num_classes, num_clients), rng)
    columns = [rounding.round_preserving_sum(*each, rng.random()) for each in zip(shares, supplies, strict=True)]
    return np.stack(columns, axis=1)


def _draw_equal_size_counts(
    examples: LabeledExamples, num_clients: int, alpha: float, rng: np.random.Generator
) -> np.ndarray:
    wishes = rounding.sample_log_dirichlet(alpha, (num_clients, examples.num_classes), rng)
    quotas = rng.permutation(rounding.split_evenly(len(examples.labels), num_clients))
    return rounding.fill_quotas(wishes, quotas, np.bincount(examples.labels, minlength=examples.num_classes))


@validate_arguments
def shards(classes_per_client: Count) -> Partition:
    """Every client has exactly `classes_per_client` classes, 2 in McMahan et al.

    Each class is cut into shards, more for a larger class, so that shards are of similar size; each client takes
    `classes_per_client` shards of different classes, at random. (McMahan et al. cut the examples sorted by label at
    even steps, where a shard may hold two classes and a client fewer or more than it should.)
    Raises InputError where clients * classes_per_client cannot be shards of the classes that there are, and for masks.
    McMahan et al., AISTATS 2017. arXiv:1602.05629
    """

    def partition(examples: LabeledExamples, num_clients: int, rng: np.random.Generator) -> list[np.ndarray]:
        check_has_classes(examples)
        check_enough_examples(len(examples.labels), num_clients, least=1)
        sizes = np.bincount(examples.labels, minlength=examples.num_classes)
        counts = np.zeros((num_clients, examples.num_classes), int)
        left = np.full(num_clients, classes_per_client)
        num_shards = _count_shards(sizes, num_clients, classes_per_client)
        for label in rng.permutation(examples.num_classes):
            # Those who lack most come first, at random among equals: then every client can always be served.
            owners = np.lexsort((rng.random(num_clients), -left))[: num_shards[label]]
            counts[owners, label] = rounding.split_evenly(sizes[label], max(1, len(owners)))[: len(owners)]
            left[owners] -= 1
        return [np.sort(part) for part in assign_classes(examples, counts, rng)]

    return partition


def _count_shards(sizes: np.ndarray, num_clients: int, classes_per_client: int) -> np.ndarray:
    present, num_shards = np.flatnonzero(sizes), num_clients * classes_per_client
    most = np.minimum(sizes[present], num_clients)
    if not len(present) <= num_shards <= most.sum():
        raise InputError(
            f"shards: {num_clients} clients of {classes_per_client} classes each take {num_shards} shards, but the "
            f"{len(present)} classes that there are make {len(present)} to {most.sum()}. Change classes_per_client or "
            "the number of clients."
        )
    result = np.zeros(len(sizes), int)
    result[present] = rounding.apportion(sizes[present], num_shards, most)
    return result


def iid() -> Partition:
    """Cut the shuffled examples into parts that differ in size by at most one.

    Raises InputError where there are fewer examples than clients.
    """

    def partition(examples: LabeledExamples, num_clients: int, rng: np.random.Generator) -> list[np.ndarray]:
        num = len(examples.labels)
        check_enough_examples(num, num_clients, least=1)
        return split_by_sizes(rng.permutation(num), rounding.split_evenly(num, num_clients))

    return partition


@validate_arguments
def quantity_skew(alpha: Positive, min_examples: CountOrZero = 1) -> Partition:
    """Clients of the same distribution and of different sizes, in proportions ~ Dirichlet(alpha).

    alpha: small, a few clients have nearly all; large, equal sizes. Clients with fewer than `min_examples` are given
    the difference by the largest ones.
    Raises InputError where alpha is not above 0, or there are fewer than min_examples a client.
    NIID-Bench, q ~ Dir(beta), beta 0.5 there. Li et al., ICDE 2022. arXiv:2102.02079
    """

    def partition(examples: LabeledExamples, num_clients: int, rng: np.random.Generator) -> list[np.ndarray]:
        num = len(examples.labels)
        check_enough_examples(num, num_clients, min_examples)
        shares = rounding.sample_dirichlet(alpha, (1, num_clients), rng)[0]
        parts = split_by_sizes(rng.permutation(num), rounding.round_preserving_sum(shares, num), is_sorted=False)
        return [np.sort(part) for part in rounding.enforce_minimum(parts, min_examples)]

    return partition


def within_domains(inner: Partition) -> Partition:
    """Every client is of one domain; the clients of a domain share its examples by the partition `inner`.

    Clients are handed to domains in equal numbers, one more to the largest domains where that does not come out even,
    and are numbered domain by domain.
    Raises InputError where there are fewer clients than domains, and as `inner` does.
    """

    def partition(examples: LabeledExamples, num_clients: int, rng: np.random.Generator) -> list[np.ndarray]:
        present, sizes = np.unique(examples.domains, return_counts=True)
        if num_clients < len(present):
            raise InputError(
                f"{num_clients} clients for {len(present)} domains. Give at least one client a domain, or hold domains "
                "out with unseen_domains."
            )
        shares = np.zeros(len(present), int)
        shares[np.argsort(-sizes, kind="stable")] = rounding.split_evenly(num_clients, len(present))
        parts = []
        for domain, num in zip(present, shares, strict=True):
            inside = np.flatnonzero(examples.domains == domain)
            part = LabeledExamples(examples.labels[inside], examples.domains[inside], examples.num_classes)
            try:
                parts += [inside[each] for each in inner(part, int(num), rng)]
            except InputError as error:
                raise InputError(f"domain {domain}: {error}") from error
        return parts

    return partition


def by_domain() -> Partition:
    """A domain a client; with more clients than domains, each domain is cut at random and evenly among its clients."""
    return within_domains(iid())


@validate_arguments
def domain_dirichlet(alpha: Positive, min_examples: CountOrZero = 1) -> Partition:
    """Feature and label skew: every client is of one domain, and within it labels follow `dirichlet(alpha)`."""
    return within_domains(dirichlet(alpha, min_examples=min_examples))


PARTITIONS = {
    factory.__name__: factory for factory in (iid, dirichlet, shards, quantity_skew, by_domain, domain_dirichlet)
}

"""Who has which examples: partitions of labelled examples over clients.

A partition gives every example to exactly one client, is a function of the generator's seed, and takes bounded time
(no drawing again until the smallest client is large enough, which never ends for a small alpha).
"""

import numpy as np

from fedjax_het.data import proportions
from fedjax_het.data.label_skew import dirichlet, shards
from fedjax_het.data.labelled import Labelled, Partition, check_enough, cut
from fedjax_het.errors import InputError
from fedjax_het.validation import CountOrZero, Positive, validate_arguments


def iid() -> Partition:
    """Cut the shuffled examples into parts that differ in size by at most one.

    Raises InputError where there are fewer examples than clients.
    """

    def partition(examples: Labelled, num_clients: int, rng: np.random.Generator) -> list[np.ndarray]:
        num = len(examples.labels)
        check_enough(num, num_clients, least=1)
        return cut(rng.permutation(num), proportions.even(num, num_clients))

    return partition


@validate_arguments
def quantity_skew(alpha: Positive, min_examples: CountOrZero = 1) -> Partition:
    """Clients of the same distribution and of different sizes, in proportions ~ Dirichlet(alpha).

    alpha: small, a few clients have nearly all; large, equal sizes. Clients with fewer than `min_examples` are given
    the difference by the largest ones.
    Raises InputError where alpha is not above 0, or there are fewer than min_examples a client.
    NIID-Bench, q ~ Dir(beta), beta 0.5 there. Li et al., ICDE 2022. arXiv:2102.02079
    """

    def partition(examples: Labelled, num_clients: int, rng: np.random.Generator) -> list[np.ndarray]:
        num = len(examples.labels)
        check_enough(num, num_clients, min_examples)
        shares = proportions.dirichlet(alpha, (1, num_clients), rng)[0]
        parts = cut(rng.permutation(num), proportions.whole(shares, num), is_sorted=False)
        return [np.sort(part) for part in proportions.top_up(parts, min_examples)]

    return partition


def within_domains(inner: Partition) -> Partition:
    """Every client is of one domain; the clients of a domain share its examples by the partition `inner`.

    Clients are handed to domains in equal numbers, one more to the largest domains where that does not come out even,
    and are numbered domain by domain.
    Raises InputError where there are fewer clients than domains, and as `inner` does.
    """

    def partition(examples: Labelled, num_clients: int, rng: np.random.Generator) -> list[np.ndarray]:
        present, sizes = np.unique(examples.domains, return_counts=True)
        if num_clients < len(present):
            raise InputError(
                f"{num_clients} clients for {len(present)} domains. Give at least one client a domain, or hold domains "
                "out with unseen_domains."
            )
        shares = np.zeros(len(present), int)
        shares[np.argsort(-sizes, kind="stable")] = proportions.even(num_clients, len(present))
        parts = []
        for domain, num in zip(present, shares, strict=True):
            inside = np.flatnonzero(examples.domains == domain)
            part = Labelled(examples.labels[inside], examples.domains[inside], examples.num_classes)
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

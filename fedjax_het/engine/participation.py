"""Who takes part in a round."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from fedjax_het.errors import InputError
from fedjax_het.types import Array, Key


class Participation(NamedTuple):
    size: Callable[[int], int]  # number of clients -> size of the cohort that is asked
    draw: Callable[[Key, int], tuple[Array, Array]]  # (key, number of clients) -> (ids, ascending; is_available)


def everyone() -> Participation:
    """All clients, every round."""
    return Participation(lambda num_clients: num_clients, lambda key, num_clients: _all_there(jnp.arange(num_clients)))


def uniformly(cohort_size: int) -> Participation:
    """A fixed number of clients, drawn uniformly without replacement.

    Raises InputError if there are fewer clients than that.
    """

    def size(num_clients: int) -> int:
        if not 1 <= cohort_size <= num_clients:
            raise InputError(
                f"cohort_size: must lie between 1 and the number of clients, {num_clients}; it is {cohort_size}."
            )
        return cohort_size

    def draw(key: Key, num_clients: int) -> tuple[Array, Array]:
        drawn = jax.random.choice(key, num_clients, (size(num_clients),), replace=False)
        return _all_there(jnp.sort(drawn))

    return Participation(size, draw)


def available(probability: float, among: Participation | None = None) -> Participation:
    """Each client that is asked reports with this probability: fewer may report than were asked, or nobody.

    Whether a client drops out is a function of (seed, round, client id).   among: who is asked; default everyone.
    """
    if not 0 <= probability <= 1:
        raise InputError(f"availability: a probability lies between 0 and 1, not {probability}.")
    among = among or everyone()

    def draw(key: Key, num_clients: int) -> tuple[Array, Array]:
        asked, answer = jax.random.split(key)
        cohort, is_available = among.draw(asked, num_clients)
        reports = jax.vmap(lambda client: jax.random.bernoulli(jax.random.fold_in(answer, client), probability))(cohort)
        return cohort, is_available & reports

    return Participation(among.size, draw)


def _all_there(cohort: Array) -> tuple[Array, Array]:
    return cohort, jnp.ones(cohort.shape, bool)

"""Who takes part in a round."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from fedjax_het.errors import InputError
from fedjax_het.types import Array, Key
from fedjax_het.validation import CountOrZero, Fraction, validate_arguments

_SHUFFLED = 1 << 10
_TURNS = 8  # rounds of the network, twice those of the theorem of Luby and Rackoff


class Participation(NamedTuple):
    size: Callable[[int], int]  # number of clients -> size of the cohort that is asked
    draw: Callable[[Key, int], tuple[Array, Array]]  # (key, number of clients) -> (ids; is_available)
    is_everyone: bool = False  # the cohort is all clients in their order, so that states need not move


def full() -> Participation:
    """All clients, every round."""
    return Participation(
        lambda num_clients: num_clients, lambda key, num_clients: _all_present(jnp.arange(num_clients)), True
    )


@validate_arguments
def uniform(cohort_size: CountOrZero) -> Participation:
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
        return _all_present(jnp.sort(draw_without_replacement(key, num_clients, size(num_clients))))

    return Participation(size, draw)


@validate_arguments
def bernoulli(probability: Fraction, among: Participation | None = None) -> Participation:
    """Each client that is asked reports with this probability: fewer may report than were asked, or nobody.

    Whether a client drops out is a function of (seed, round, client id).   among: who is asked; default everyone.
    """
    among = among or full()

    def draw(key: Key, num_clients: int) -> tuple[Array, Array]:
        asked, answer = jax.random.split(key)
        cohort, is_available = among.draw(asked, num_clients)
        reports = jax.vmap(lambda client: jax.random.bernoulli(jax.random.fold_in(answer, client), probability))(cohort)
        return cohort, is_available & reports

    return Participation(among.size, draw, among.is_everyone)


def draw_without_replacement(key: Key, num_clients: int, count: int) -> Array:
    """[count] different ids below `num_clients`, at random, in work that does not grow with the number of clients.

    Up to _SHUFFLED clients all are shuffled. Beyond, id i is where a keyed permutation sends i: a Feistel network over
    the next even power of two, walked on until it is back among the clients.
    """
    if num_clients <= _SHUFFLED:
        return jax.random.choice(key, num_clients, (count,), replace=False)
    half = -(-(num_clients - 1).bit_length() // 2)
    keys, mask = jax.random.split(key, _TURNS), jnp.uint32((1 << half) - 1)

    def turn(number: Array, places: Array) -> Array:
        left, right = places >> half, places & mask
        mixed = jax.vmap(lambda x: jax.random.bits(jax.random.fold_in(keys[number], x), (), "uint32"))(right)
        return (right << half) | (left ^ (mixed & mask))

    def permuted(places: Array) -> Array:
        return jax.lax.fori_loop(0, _TURNS, turn, places)

    def walk_on(places: Array) -> Array:
        return jnp.where(places < num_clients, places, permuted(places))

    start = permuted(jnp.arange(count, dtype="uint32"))
    return jax.lax.while_loop(lambda places: jnp.any(places >= num_clients), walk_on, start).astype(jnp.int32)


def _all_present(cohort: Array) -> tuple[Array, Array]:
    return cohort, jnp.ones(cohort.shape, bool)

"""Participation rules: which clients take part in a round."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Bool, Int

from fedjax_het.errors import InputError
from fedjax_het.types import Array, Key
from fedjax_het.validation import CountOrZero, Fraction, validate_arguments

_MAX_SHUFFLED = 1 << 10  # clients
_FEISTEL_ROUNDS = 8  # twice the rounds in the theorem of Luby and Rackoff


class Participation(NamedTuple):
    """A rule that draws the cohort of a round."""

    size: Callable[[int], int]  # number of clients -> size of the cohort that is asked
    # (key, number of clients, number of the round) -> (ids; is_available)
    draw: Callable[[Key, int, Array], tuple[Int[Array, "cohort"], Bool[Array, "cohort"]]]
    is_everyone: bool = False  # the cohort is all clients in their order, so that no states are gathered


def full() -> Participation:
    """All clients take part in every round."""
    return Participation(
        lambda num_clients: num_clients,
        lambda key, num_clients, number: _all_present(jnp.arange(num_clients)),
        True,
    )


@validate_arguments
def uniform(cohort_size: CountOrZero) -> Participation:
    """A fixed number of clients, drawn uniformly without replacement.

    Args:
        cohort_size: The number of clients per round.

    Raises:
        InputError: When a round is built: there are fewer clients than that.
    """

    def size(num_clients: int) -> int:
        if not 1 <= cohort_size <= num_clients:
            raise InputError(
                f"cohort_size: must lie between 1 and the number of clients, {num_clients}; it is {cohort_size}."
            )
        return cohort_size

    def draw(key: Key, num_clients: int, number: Array) -> tuple[Array, Array]:
        return _all_present(jnp.sort(draw_without_replacement(key, num_clients, size(num_clients))))

    return Participation(size, draw)


@validate_arguments
def bernoulli(probability: Fraction, among: Participation | None = None) -> Participation:
    """Each client that is asked reports with a given probability, so that fewer may report than were asked, or none.

    Whether a client drops out is a function of (seed, round, client id).

    Args:
        probability: The probability that a client reports.
        among: The rule that draws the clients that are asked; None is all clients.
    """
    among = among or full()

    def draw(key: Key, num_clients: int, number: Array) -> tuple[Array, Array]:
        asked, answer = jax.random.split(key)
        cohort, is_available = among.draw(asked, num_clients, number)
        reports = jax.vmap(lambda client: jax.random.bernoulli(jax.random.fold_in(answer, client), probability))(cohort)
        return cohort, is_available & reports

    return Participation(among.size, draw, among.is_everyone)


def draw_without_replacement(key: Key, num_clients: int, count: int) -> Array:
    """Draw different clients at random, in time that does not grow with the number of clients.

    Up to _MAX_SHUFFLED clients are shuffled. For more, the i-th id is the image of i under a keyed permutation: a
    Feistel network over the next even power of two, applied again to values that are no client ids (cycle walking).

    Args:
        key: The key of the draw.
        num_clients: The number of clients.
        count: The number of ids.

    Returns:
        Ids below num_clients, [count].
    """
    if num_clients <= _MAX_SHUFFLED:
        return jax.random.choice(key, num_clients, (count,), replace=False)
    half = -(-(num_clients - 1).bit_length() // 2)
    keys, mask = jax.random.split(key, _FEISTEL_ROUNDS), jnp.uint32((1 << half) - 1)

    def feistel_round(number: Array, values: Array) -> Array:
        left, right = values >> half, values & mask
        mixed = jax.vmap(lambda x: jax.random.bits(jax.random.fold_in(keys[number], x), (), "uint32"))(right)
        return (right << half) | (left ^ (mixed & mask))

    def permute(values: Array) -> Array:
        return jax.lax.fori_loop(0, _FEISTEL_ROUNDS, feistel_round, values)

    walked = jax.lax.while_loop(
        lambda values: jnp.any(values >= num_clients),
        lambda values: jnp.where(values < num_clients, values, permute(values)),
        permute(jnp.arange(count, dtype="uint32")),
    )
    return walked.astype(jnp.int32)


def _all_present(cohort: Array) -> tuple[Array, Array]:
    return cohort, jnp.ones(cohort.shape, bool)

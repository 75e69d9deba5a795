"""Participation rules that depend on nothing but the seed, the round and a file."""

import jax
import jax.numpy as jnp
import numpy as np
import scipy  # imports its subpackages lazily

from fedjax_het._internal.number_table import read_number_table
from fedjax_het.engine.round.participation._record import Participation
from fedjax_het.errors import InputError
from fedjax_het.types import Array, Key, PyTree
from fedjax_het.validation import (
    LARGEST_COUNT,
    Count,
    CountOrZero,
    PositiveFraction,
    check_clients,
    validate_arguments,
)

_MAX_SHUFFLED = 1 << 10  # clients
_FEISTEL_ROUNDS = 8  # twice the rounds in the theorem of Luby and Rackoff
_MAX_OVERFLOW = 1e-10  # probability per round that more clients are drawn than there are slots


def full() -> Participation:
    """All clients take part in every round."""
    return Participation(
        lambda num_clients: num_clients,
        lambda key, num_clients, number: _all_present(jnp.arange(num_clients)),
        True,
    )


@validate_arguments
def uniform(cohort_size: CountOrZero) -> Participation:
    """A fixed number of clients, sampled uniformly without replacement.

    Args:
        cohort_size: The number of clients per round.

    Raises:
        InputError: When a round is built, if there are fewer clients than `cohort_size`.
    """

    def size(num_clients: int) -> int:
        if not 1 <= cohort_size <= num_clients:
            raise InputError(f"cohort_size: expected 1 to {num_clients}, the number of clients, got {cohort_size}.")
        return cohort_size

    def draw(key: Key, num_clients: int, number: Array) -> tuple[Array, Array]:
        return _all_present(jnp.sort(draw_without_replacement(key, num_clients, size(num_clients))))

    return Participation(size, draw)


@validate_arguments
def bernoulli(probability: PositiveFraction, among: Participation | None = None) -> Participation:
    """Each selected client reports with a given probability; the rest, possibly all, drop out.

    Whether a client drops out is a function of (seed, round, client id).

    Args:
        probability: The probability that a selected client reports.
        among: The rule that selects clients (default None, all clients).
    """
    among = among or full()

    def draw(key: Key, num_clients: int, number: Array, *state: PyTree) -> tuple[Array, Array]:
        draw_key, answer = jax.random.split(key)
        cohort, is_available = among.draw(draw_key, num_clients, number, *state)
        reports = jax.vmap(lambda client: jax.random.bernoulli(jax.random.fold_in(answer, client), probability))(cohort)
        return cohort, is_available & reports

    overflow = among.overflow
    return among._replace(
        draw=draw,
        mean_size=lambda num_clients: probability * among.expected_size(num_clients),
        overflow=overflow and (lambda key, num_clients: overflow(jax.random.split(key)[0], num_clients)),
    )


@validate_arguments
def poisson(probability: PositiveFraction, slots: Count | None = None) -> Participation:
    """Poisson sampling: each client takes part with a given probability, independently of all others.

    A round has a fixed number of slots. If more clients are drawn, a random subset is left out; the privacy of the
    run is then that of truncated Poisson sampling, see `fedjax_het.privacy`.

    Args:
        probability: The probability q of each client in each round.
        slots: The number of slots. None: the smallest number that overflows in at most one round in 10^10, about
            q N + 6 sqrt(q N).
    """

    def size(num_clients: int) -> int:
        if slots and slots > num_clients:
            raise InputError(f"slots: {slots} slots for {num_clients} clients. Lower it, or remove it.")
        return min(slots or min_slots(num_clients, probability, _MAX_OVERFLOW), num_clients)

    def draw(key: Key, num_clients: int, number: Array) -> tuple[Array, Array]:
        if probability == 1 and size(num_clients) == num_clients:
            return _all_present(jnp.arange(num_clients))
        count_key, order_key = jax.random.split(key)
        count, places = _draw_binomial(count_key, num_clients, probability), size(num_clients)
        cohort = draw_without_replacement(order_key, num_clients, places)
        # Clients are left out in random order and sorted afterwards; sorting first would leave out large ids.
        is_drawn, by_id = jnp.arange(places) < count, jnp.argsort(cohort)
        return cohort[by_id], is_drawn[by_id]

    def overflow(key: Key, num_clients: int) -> Array:
        number = _draw_binomial(jax.random.split(key)[0], num_clients, probability)
        return jnp.maximum(number - size(num_clients), 0)

    is_everyone = probability == 1 and slots is None
    return Participation(size, draw, is_everyone, lambda num_clients: probability * num_clients, overflow)


def min_slots(num_clients: int, probability: float, max_overflow: float) -> int:
    """The smallest number of slots that Poisson sampling exceeds with at most this probability per round."""
    slots = int(scipy.stats.binom.isf(max_overflow, num_clients, probability))
    while overflow_probability(num_clients, probability, slots) > max_overflow:
        slots += 1
    while slots > 1 and overflow_probability(num_clients, probability, slots - 1) <= max_overflow:
        slots -= 1
    return max(slots, 1)


def overflow_probability(num_clients: int, probability: float, slots: int) -> float:
    """The probability per round that Poisson sampling draws more clients than there are slots."""
    return float(scipy.stats.binom.sf(slots, num_clients, probability))


def _draw_binomial(key: Key, num_trials: int, probability: float) -> Array:
    """Draw a binomial number exactly, by comparing 64 random bits with its distribution function.

    The result is the number of k with V < P(K > k) for a uniform V; values of k for which this is certain are skipped.
    """
    if probability == 1:
        return jnp.int32(num_trials)
    mean, spread = num_trials * probability, 12 * (num_trials * probability * (1 - probability)) ** 0.5 + 50
    first, last = max(0, int(mean - spread)), min(num_trials, int(mean + spread))
    exceeds = scipy.stats.binom.sf(np.arange(first, last), num_trials, probability)
    bounds = [min(int(tail * 2**64), 2**64 - 1) for tail in exceeds.tolist()]
    high, low = (np.array(part, np.uint32) for part in zip(*(divmod(bound, 2**32) for bound in bounds), strict=True))
    value = jax.random.bits(key, (2,), "uint32")
    is_below = (value[0] < high) | ((value[0] == high) & (value[1] < low))
    return first + jnp.sum(is_below, dtype=jnp.int32)


@validate_arguments
def trace(path: str, cohort_size: CountOrZero = 0, period: Count | None = None) -> Participation:
    """Clients are available in the rounds listed in a file.

    Args:
        path: A CSV file with the columns client, start, end: client i is available in rounds start <= r < end. A client
            may have several lines; a client without lines is never available. Rounds are numbered from 0.
        cohort_size: The number of clients sampled uniformly from those available; if fewer are available, all of them
            take part. 0: all available clients.
        period: The number of rounds after which the file repeats (default None, never).

    Raises:
        InputError: The file cannot be read or a line is malformed; when a round is built, a client in the file does
            not exist.
    """
    intervals = _read_intervals(path, period)

    def size(num_clients: int) -> int:
        check_clients(f"trace: '{path}'", intervals[:, 0].tolist(), num_clients)
        return uniform(cohort_size).size(num_clients) if cohort_size else num_clients

    def draw(key: Key, num_clients: int, number: Array) -> tuple[Array, Array]:
        client, start, end = jnp.asarray(intervals.T)
        now = jnp.asarray(number) if period is None else jnp.asarray(number) % period
        is_available = jnp.zeros(num_clients, bool).at[client].max((start <= now) & (now < end))
        if not cohort_size:
            return jnp.arange(num_clients), is_available
        draws = jax.vmap(lambda i: jax.random.uniform(jax.random.fold_in(key, i)))(jnp.arange(num_clients))
        cohort = jnp.sort(jax.lax.top_k(jnp.where(is_available, draws, -1.0), size(num_clients))[1])
        return cohort, is_available[cohort]

    return Participation(size, draw, not cohort_size, depends_on_round=True)


def _read_intervals(path: str, period: int | None) -> np.ndarray:
    """[lines, 3] int32: client, start, end."""
    intervals = read_number_table(path, {"client": int, "start": int, "end": int}, "trace")
    for number, (client, start, end) in enumerate(intervals, 2):
        if not 0 <= client <= LARGEST_COUNT or not 0 <= start < end <= (period or LARGEST_COUNT):
            end_condition = f", with end at most {period}, the period" if period else ""
            raise InputError(
                f"trace: '{path}', line {number}: expected client >= 0 and 0 <= start < end{end_condition}, got "
                f"{client}, {start}, {end}."
            )
    return np.array(intervals, np.int32)


def draw_without_replacement(key: Key, num_clients: int, count: int) -> Array:
    """Sample clients without replacement, in time independent of the number of clients.

    Up to _MAX_SHUFFLED clients are shuffled. For more, the i-th id is the image of i under a keyed permutation: a
    Feistel network over the next even power of two, reapplied to values that are not client ids (cycle walking).

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

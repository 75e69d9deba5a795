"""Participation rules that keep a distance between the participations of a client, which correlated noise needs."""

import jax
import jax.numpy as jnp
from jaxtyping import Int

from fedjax_het._internal.keys import make_key
from fedjax_het.engine.round.participation._record import Participation, Told
from fedjax_het.engine.round.participation._rules import draw_without_replacement
from fedjax_het.errors import InputError
from fedjax_het.types import Array, Key, Variables
from fedjax_het.validation import Count, Seed, validate_arguments


@validate_arguments
def cyclic(period: Count, group_seed: Seed = 0) -> Participation:
    """Clients take turns: each belongs to a group, and all clients of group r mod period train in round r.

    Two participations of a client are exactly `period` rounds apart. Groups are random and differ in size by at most
    one client.

    Args:
        period: The number of groups.
        group_seed: The seed of the groups, which are the same in every run.

    Raises:
        InputError: When a round is built, if there are fewer clients than groups.
    """

    def size(num_clients: int) -> int:
        if period > num_clients:
            raise InputError(f"period: {period} groups of {num_clients} clients. Lower it.")
        return -(-num_clients // period)

    def draw(key: Key, num_clients: int, number: Array) -> tuple[Array, Array]:
        order = draw_without_replacement(make_key(group_seed), num_clients, num_clients)
        places = jnp.asarray(number) % period + period * jnp.arange(size(num_clients))
        cohort = order[places % num_clients]  # the place after the last one is that of an absent client
        by_id = jnp.argsort(cohort)
        return cohort[by_id], (places < num_clients)[by_id]

    return Participation(
        size,
        draw,
        is_everyone=False,
        mean_size=lambda num_clients: num_clients / period,
        depends_on_round=True,
        min_separation=period,
    )


@validate_arguments
def waiting(cohort_size: Count, separation: Count) -> Participation:
    """A fixed number of clients, sampled uniformly from those that have waited long enough since they were last drawn.

    The state is the last round of every client.

    Args:
        cohort_size: The number of clients per round.
        separation: The minimum number of rounds from one draw of a client to its next. 1: as `uniform`.

    Raises:
        InputError: When a round is built, if there are fewer than cohort_size * separation clients.
    """

    def size(num_clients: int) -> int:
        if cohort_size * separation > num_clients:
            raise InputError(
                f"separation: {cohort_size} clients per round that wait for {separation} rounds need "
                f"{cohort_size * separation} clients, and there are {num_clients}. Lower cohort_size or separation."
            )
        return cohort_size

    def draw(key: Key, num_clients: int, number: Array, last: Int[Array, "clients"]) -> tuple[Array, Array]:
        has_waited = (last == 0) | (jnp.asarray(number) + 1 - last >= separation)
        draws = jax.vmap(lambda i: jax.random.uniform(jax.random.fold_in(key, i)))(jnp.arange(num_clients))
        cohort = jnp.sort(jax.lax.top_k(jnp.where(has_waited, draws, -1.0), size(num_clients))[1])
        return cohort, has_waited[cohort]

    def init(num_examples: Int[Array, "clients"], shared: Variables, key: Key) -> Int[Array, "clients"]:
        return jnp.zeros(len(num_examples), jnp.int32)

    def update(last: Int[Array, "clients"], told: Told) -> Int[Array, "clients"]:
        return last.at[told.cohort].set(told.number)

    return Participation(size, draw, depends_on_round=True, init=init, update=update, min_separation=separation)

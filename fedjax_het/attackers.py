"""The choice of the clients that attack: given ids, or a fraction of all clients."""

from collections.abc import Sequence
from typing import Any, TypedDict

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_het._internal.keys import make_key
from fedjax_het.errors import InputError
from fedjax_het.types import Array
from fedjax_het.validation import CountOrZero, Fraction, Seed, check_clients, refuse_without_effect


class Attackers(TypedDict, total=False):
    """Options that all attacks share: who attacks. Give `fraction` or `clients`.

    fraction: round(fraction N) of the N clients of the run attack, chosen at random.
    clients: the ids of those who attack.
    seed: of the choice by fraction, which is a function of (seed, client id, N) and the same for all attacks; 0.
    """

    fraction: Fraction
    clients: Sequence[CountOrZero]
    seed: Seed


def check_attackers(options: Attackers) -> None:
    """Raise InputError unless there is one way to tell who attacks."""
    if ("fraction" in options) == ("clients" in options):
        raise InputError("fraction: give the fraction of the clients that attack, or their ids as clients.")
    if "clients" in options and "seed" in options:
        refuse_without_effect(check_attackers, "with clients", seed=options["seed"])


def choose_attackers(num_clients: int, options: Attackers) -> np.ndarray:
    """The ids of the attackers, rising.

    Raises:
        InputError: There is no client of one of the ids, or a fraction above 0 rounds to no client.
    """
    if "clients" in options:
        ids = np.unique(np.asarray(options["clients"], np.int64))
        check_clients("clients", ids.tolist(), num_clients)
        return ids
    if options["fraction"] > 0 and round(options["fraction"] * num_clients) == 0:
        raise InputError(
            f"fraction: {options['fraction']:g} of {num_clients} clients rounds to no attacker. Raise it, or set 0."
        )
    with jax.ensure_compile_time_eval():
        draws = np.asarray(jax.vmap(lambda client: _draw(options, client))(jnp.arange(num_clients)))
    order = np.lexsort((np.arange(num_clients), draws))
    return np.sort(order[: round(options["fraction"] * num_clients)])


def is_attacker(client: Array | Any, num_clients: int, options: Attackers) -> Array:
    """[...] bool: whether clients with these ids attack, without an array of all clients."""
    ids = choose_attackers(num_clients, options)
    if "clients" in options or not ids.size:
        return jnp.any(jnp.asarray(client)[..., None] == jnp.asarray(ids, jnp.int32), axis=-1)
    with jax.ensure_compile_time_eval():
        draws = np.asarray(jax.vmap(lambda client_id: _draw(options, client_id))(jnp.asarray(ids)))
    last = np.lexsort((ids, draws))[-1]  # the attackers are those who draw no more than this one
    client = jnp.asarray(client)
    draw = jax.vmap(lambda number: _draw(options, number))(client.ravel()).reshape(client.shape)
    return (draw < draws[last]) | ((draw == draws[last]) & (client <= ids[last]))


def _draw(options: Attackers, client: Array) -> Array:
    key = jax.random.fold_in(make_key(options.get("seed", 0)), client)
    return jax.random.bits(key, (), "uint32")

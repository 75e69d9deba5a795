"""Means over clients of their personal leaves."""

import jax
import jax.numpy as jnp

from fedjax_het import tree
from fedjax_het.engine.parallel.layout import Layout, vmapped
from fedjax_het.types import Array, ClientGroups, ClientState, Variables


def trained_client_weights(rounds: Array, groups: ClientGroups | None = None) -> Array:
    """[clients]: weights of the mean over clients that have trained, or over all clients if none has.

    With groups of clients [groups, clients], of the means over each group.
    """
    is_member = jnp.ones(rounds.shape, bool)
    if groups:
        is_member = groups.assign(jnp.arange(len(rounds))) == jnp.arange(groups.size)[:, None]
    has_trained = is_member & (rounds > 0)
    counted = jnp.where(jnp.any(has_trained, -1, keepdims=True), has_trained, is_member)
    return counted / jnp.maximum(jnp.sum(counted, -1, keepdims=True), 1)


def add_weighted(total: Variables, personal: Variables, shares: Array) -> Variables:
    """Add a weighted sum over clients of their personal variables."""
    return tree.add(total, tree.weighted_sum(personal, shares))


def mean_personal_variables(
    clients: ClientState,
    num_clients: int,
    layout: Layout = vmapped,
    block_size: int | None = None,
    groups: ClientGroups | None = None,
) -> Variables:
    """The mean of personal leaves over clients that have trained, or over all clients if none has.

    With groups of clients, leaves [groups, ...]: the means over each group.

    Args:
        clients: Leaves [num_clients or more, ...]; rows beyond num_clients are ignored.
        num_clients: The number of clients.
        layout: The layout of the client axis. Every device sums all clients, in the order of a streaming evaluation.
        block_size: The number of clients summed at a time; None: all.
        groups: The groups of clients, if their networks differ.
    """
    block_size = block_size or num_clients
    weights = trained_client_weights(jnp.asarray(clients.rounds)[:num_clients], groups)
    personal = jax.tree.map(jnp.asarray, clients.personal)

    def add(total: Variables, number: Array) -> tuple[Variables, None]:
        ids, is_client = client_block(number, block_size, num_clients)
        block = layout.constrain_replicated(layout.take(personal, ids))
        return add_weighted(total, block, jnp.where(is_client, weights[..., ids], 0)), None

    zeros = jax.tree.map(lambda x: jnp.zeros((*weights.shape[:-1], *x.shape[1:]), x.dtype), personal)
    return jax.lax.scan(add, zeros, jnp.arange(-(-num_clients // block_size)))[0]


def client_block(number: Array | int, size: int, num_clients: int) -> tuple[Array, Array]:
    """(Ids, whether they are clients rather than padding) of the block with this number."""
    ids = number * size + jnp.arange(size)
    return jnp.minimum(ids, num_clients - 1), ids < num_clients

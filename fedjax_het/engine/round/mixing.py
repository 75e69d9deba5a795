"""Exchange of models among clients that have no server."""

import jax
import jax.numpy as jnp

from fedjax_het import topologies, tree
from fedjax_het.algorithm import Algorithm
from fedjax_het.errors import InputError
from fedjax_het.topologies import Mixing
from fedjax_het.types import Array, ClientState, HostArray, Key, State, Variables

_MIXING = 0xFFFFFFFC  # folded into keys, as those of `uplink`; never a client id


def check_mixing(algorithm: Algorithm, *, is_asynchronous: bool) -> None:
    """Raise InputError if a round without a server cannot be composed of these parts."""
    if algorithm.mixing is None:
        return
    if is_asynchronous:
        raise InputError("asynchronous: there is no server whose steps clients could miss. Leave it out.")
    if algorithm.survey or algorithm.published:
        raise InputError("mixing: a survey or a published value needs a server. Choose another algorithm.")
    if not algorithm.aggregator.is_uniform_mean:
        raise InputError(
            "aggregator: without a server it only reports the mean of the clients' models. Use mean('uniform')."
        )


def receive_own(mixing: Mixing | None, shared: Variables, clients: ClientState) -> Variables:
    """What a client receives at the start of a round: its own version of the shared leaves, or the server's."""
    return shared if mixing is None else tree.partition_like(clients.personal, shared)[1]


def mix_before(mixing: Mixing, num_clients: int, key: Key, state: State, ids: Array, is_here: HostArray) -> ClientState:
    """Exchange the models of a cohort before training, if the order says so; rows of padding follow the cohort."""
    if mixing.order != "combine_then_adapt":
        return state.clients
    own = receive_own(mixing, state.server.shared, state.clients)
    cohort = slice(len(ids))
    present = jnp.asarray(is_here[cohort])
    mixed = _mix(mixing, num_clients, key, state.server.round, ids, present, tree.take(own, cohort))
    own = tree.put(own, jnp.arange(len(ids)), mixed)
    return state.clients._replace(personal=tree.merge(state.clients.personal, own))


def mix_after(
    mixing: Mixing, num_clients: int, num_training: int, key: Key, before: State, after: State, ids: Array
) -> State:
    """Exchange the models of a cohort after training; the server's shared leaves follow the mean over all clients.

    Args:
        mixing: The rule.
        num_clients: The number of clients.
        num_training: The number of clients with training examples, over which the mean is taken.
        key: The key of the round's clients.
        before: The state before the round, its clients [cohort, ...].
        after: The state after training, its clients [cohort, ...].
        ids: [cohort] client ids.
    """
    started, own = (receive_own(mixing, before.server.shared, state.clients) for state in (before, after))
    is_used = after.clients.rounds > before.clients.rounds
    arguments = mixing, num_clients, key, before.server.round, ids, is_used
    if mixing.order == "adapt_then_combine":
        own = _mix(*arguments, own)
    elif mixing.order == "adapt_while_combine":
        own = tree.add(own, tree.subtract(_mix(*arguments, started), started))
    weights = jnp.full(len(ids), 1 / num_training)
    shared = tree.add(before.server.shared, tree.weighted_sum(tree.subtract(own, started), weights))
    clients = after.clients._replace(personal=tree.merge(after.clients.personal, own))
    return after._replace(clients=clients, server=after.server._replace(shared=shared))


def _mix(
    mixing: Mixing, num_clients: int, key: Key, number: Array, ids: Array, is_present: Array, own: Variables
) -> Variables:
    """W^Q X for models X, leaves [cohort, ...]; absent clients, and all outside the cohort, keep theirs."""
    topology = mixing.topology
    heard = topology.hear(num_clients, number, jax.random.fold_in(key, jnp.uint32(_MIXING)))
    is_here = jnp.zeros(num_clients, bool).at[ids].set(is_present)
    rows = jnp.zeros(num_clients, int).at[ids].set(jnp.arange(len(ids)))  # of every client; 0 outside, with weight 0
    weights = topology.weigh(heard, is_here, number)[ids]
    for _ in range(mixing.num_mixings):
        own = topologies.mix(rows[heard[ids]], weights, own)
    return own

"""Exchange of models among clients that have no server."""

import jax
import jax.numpy as jnp

from fedjax_het import topologies, tree
from fedjax_het.algorithm import Algorithm
from fedjax_het.engine.round.participation import Participation
from fedjax_het.errors import InputError
from fedjax_het.topologies import Mixing
from fedjax_het.types import Array, ClientState, HostArray, Key, State, Variables

_MIXING = 0xFFFFFFFD  # no client has this id


def check_mixing(
    algorithm: Algorithm, participation: Participation, num_clients: int, *, is_asynchronous: bool
) -> None:
    """Raise InputError if a round without a server cannot be composed of these parts."""
    if algorithm.mixing is None:
        return
    if participation.size(num_clients) < num_clients:
        raise InputError(
            "cohort_size: without a server, all clients take part in every round. Set cohort_size=0; clients may be "
            "absent by dropout or availability."
        )
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


def mix_before(mixing: Mixing, key: Key, state: State, ids: Array, is_here: HostArray) -> ClientState:
    """Exchange the models of a cohort before training, if the order says so; rows of padding follow the cohort."""
    if mixing.order != "combine_then_adapt":
        return state.clients
    own = receive_own(mixing, state.server.shared, state.clients)
    cohort = slice(len(ids))
    mixed = _mix(mixing, key, state.server.round, ids, jnp.asarray(is_here[cohort]), tree.take(own, cohort))
    own = jax.tree.map(lambda leaf, rows: leaf.at[cohort].set(rows), own, mixed)
    return state.clients._replace(personal=tree.merge(state.clients.personal, own))


def mix_after(mixing: Mixing, key: Key, before: ClientState, state: State, ids: Array) -> State:
    """Exchange the models of a cohort after training; the server's shared leaves become their mean.

    Args:
        mixing: The rule.
        key: The key of the round's clients.
        before: The clients as they began, [cohort, ...].
        state: The state after training, its clients [cohort, ...].
        ids: [cohort] client ids.
    """
    started, own = (receive_own(mixing, state.server.shared, clients) for clients in (before, state.clients))
    is_used = state.clients.rounds > before.rounds
    number = state.server.round - 1
    if mixing.order == "adapt_then_combine":
        own = _mix(mixing, key, number, ids, is_used, own)
    elif mixing.order == "adapt_while_combine":
        own = tree.add(own, tree.subtract(_mix(mixing, key, number, ids, is_used, started), started))
    mean = tree.weighted_sum(own, jnp.full(len(ids), 1 / len(ids)))
    clients = state.clients._replace(personal=tree.merge(state.clients.personal, own))
    return state._replace(clients=clients, server=state.server._replace(shared=mean))


def _mix(mixing: Mixing, key: Key, number: Array, ids: Array, is_present: Array, own: Variables) -> Variables:
    """W^Q X for models X, leaves [cohort, ...]; those of absent clients are unchanged."""
    topology = mixing.topology
    heard = topology.hear(len(ids), number, jax.random.fold_in(key, jnp.uint32(_MIXING)))
    rows = jnp.argsort(ids)  # of every client
    weights = topology.weigh(heard, is_present[rows], number)
    for _ in range(mixing.num_mixings):
        own = topologies.mix(rows[heard[ids]], weights[ids], own)
    return own

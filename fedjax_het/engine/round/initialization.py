"""The state before the first round."""

import jax.numpy as jnp

from fedjax_het import sharing, tree
from fedjax_het.engine.round import uplink
from fedjax_het.engine.round.phases import RoundSpec, broadcast
from fedjax_het.types import ClientState, HostArray, Key, RunCounters, ServerState, State


def initial_state(spec: RoundSpec, key: Key, inputs: HostArray) -> State:
    """Initialize the server and a single client.

    Args:
        spec: The constants of all rounds; its problem has the adapted model.
        key: The key of the initial weights.
        inputs: Stored inputs of one or more examples; only the shape is used.

    Returns:
        The state; its `clients` have no leading axis.

    Raises:
        InputError: See `sharing.group_leaves`.
    """
    algorithm, problem, num_clients = spec.algorithm, spec.problem, spec.num_clients
    example = problem.prepare(jnp.asarray(inputs[:1]))
    variables = problem.model.init(key, example)
    shared, personal, base, frozen = sharing.group_leaves(problem.model, algorithm.sharing, variables, example)
    trained, problem = tree.merge(shared, personal), problem.bind(frozen, base)
    memory = {name: kept.init(trained) for name, kept in algorithm.memory.items()}
    memory |= uplink.initial_memory(algorithm.uplink, shared)
    zero = jnp.zeros((), jnp.int32)
    own = tree.merge(shared, personal) if algorithm.mixing else personal
    server = ServerState(
        round=zero,
        shared=shared,
        optimizer=algorithm.server_optimizer.init(shared["params"]),
        aggregator=algorithm.aggregator.init(shared, num_clients),
        published={
            name: summary.init(problem, shared, num_clients, spec.cohort_size)
            for name, summary in algorithm.published.items()
        },
        uplink=tuple(stage.init_server(shared, num_clients, spec.cohort_size) for stage in algorithm.uplink),
        base=base,
        frozen=frozen,
    )
    if spec.num_versions > 1:
        server = server._replace(history=tree.broadcast(broadcast(spec, server), spec.num_versions))
    counters = RunCounters(zero, zero, jnp.zeros((), float) if spec.has_clock else None)
    return State(server, ClientState(own, memory, zero), counters)


def broadcast_clients(state: State, num_clients: int) -> State:
    """Give every client the initial state: leaves [clients, ...]."""
    return state._replace(clients=tree.broadcast(state.clients, num_clients))

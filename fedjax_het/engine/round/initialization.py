"""The state before the first round."""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from fedjax_het import sharing, tree
from fedjax_het.engine.round import uplink
from fedjax_het.engine.round.architectures import check_groups
from fedjax_het.engine.round.phases import broadcast
from fedjax_het.engine.round.records import RoundSpec
from fedjax_het.errors import InputError
from fedjax_het.types import ClientState, HostArray, Key, PyTree, RunCounters, ServerState, State, Variables

_PARTICIPATION = 0xFFFFFFFF  # folded into the key of the initial weights; never the number of a model


def initial_state(spec: RoundSpec, key: Key, inputs: HostArray) -> State:
    """Initialize the server and a single client.

    Args:
        spec: The constants of all rounds; its problem has the adapted model.
        key: The key of the initial weights.
        inputs: Stored inputs of one or more examples; only the shape is used.

    Returns:
        The state; its `clients` have no leading axis.

    Raises:
        InputError: See `sharing.group_leaves`; or leaves that the server alone changes meet several models.
    """
    algorithm, problem, num_clients = spec.algorithm, spec.problem, spec.num_clients
    example = problem.prepare(jnp.asarray(inputs[:1]))

    def group(key: Key) -> tuple[Variables, ...]:
        variables = problem.model.init(key, example)
        return sharing.group_leaves(problem.model, algorithm.sharing, variables, example)

    shared, personal, base, frozen = group(key)
    check_groups(problem, shared, num_clients)
    if algorithm.models and jax.tree.leaves(base):
        raise InputError(
            "models: the algorithm adapts leaves that the server alone changes, of which there is one copy for all "
            "models. Choose another algorithm."
        )
    if algorithm.aggregator.runs_model and jax.tree.leaves(personal):
        raise InputError(
            "sharing: the server runs the whole model, and does not have its personal leaves. Share everything, or "
            "take another aggregator."
        )
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
        participation=_initialize_participation(spec, shared, key),
    )
    if algorithm.models:
        server = server._replace(**_initialize_models(spec, lambda key: group(key)[0], key))
    if spec.num_versions > 1:
        server = server._replace(history=tree.broadcast(broadcast(spec, server), spec.num_versions))
    seconds = jnp.zeros((), float) if spec.has_clock else None
    counters = RunCounters(zero, zero, seconds, zero if spec.participation.poll else None)
    return State(server, ClientState(own, memory, zero), counters)


def _initialize_participation(spec: RoundSpec, shared: Variables, key: Key) -> PyTree:
    init = spec.participation.init
    own = jax.random.fold_in(key, jnp.uint32(_PARTICIPATION))
    return () if init is None else init(spec.num_examples, shared, own)


def _initialize_models(spec: RoundSpec, initialize: Callable[[Key], Variables], key: Key) -> dict[str, PyTree]:
    """The fields of the server that differ by model, [models, ...]; the first model is that of `key`."""
    algorithm = spec.algorithm
    assert algorithm.models
    numbers, is_same = range(1, algorithm.models.number), algorithm.models.are_equal
    others = (key if is_same else jax.random.fold_in(key, number) for number in numbers)
    shared = jax.vmap(initialize)(jnp.stack([key, *others]))
    optimizer = jax.vmap(algorithm.server_optimizer.init)(shared["params"])
    aggregator = jax.vmap(lambda shared: algorithm.aggregator.init(shared, spec.num_clients))(shared)
    return {"shared": shared, "optimizer": optimizer, "aggregator": aggregator}


def broadcast_clients(state: State, num_clients: int) -> State:
    """Give every client the initial state: leaves [clients, ...]."""
    return state._replace(clients=tree.broadcast(state.clients, num_clients))

"""The stages between a client's finished update and the server, applied in a round.

Without stages nothing is traced, and rounds are bitwise unchanged.
"""

import functools
import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp

from fedjax_het import tree
from fedjax_het.algorithm import Algorithm, CorruptView, ReceiveView, Sent, Stage, StageView
from fedjax_het.types import Array, Broadcast, Key, Named, PyTree, ServerState, ServerView, Upload, Variables

MEMORY = "uplink"
"""The key of the stages in a client's memory."""
_CLIENT, _ROUND, _SERVER = 0xFFFFFFFD, 0xFFFFFFFE, 0xFFFFFFFF  # folded into keys; never client ids


def initial_memory(stages: Sequence[Stage], shared: Variables) -> Named:
    """The initial client memory of the stages; {} if no stage has memory."""
    if not any(stage.init for stage in stages):
        return {}
    return {MEMORY: tuple(stage.init(shared) if stage.init else () for stage in stages)}


def publish(stages: Sequence[Stage], server: ServerState) -> tuple[PyTree, ...]:
    """The values that the server publishes for each stage."""
    return tuple(stage.publish(state) for stage, state in zip(stages, server.uplink, strict=True))


def round_keys(key: Key) -> tuple[Key, Key]:
    """Derive (the key shared by clients and server, the server's key) from the key of a round's clients."""
    return jax.random.fold_in(key, jnp.uint32(_ROUND)), jax.random.fold_in(key, jnp.uint32(_SERVER))


def send(
    stages: Sequence[Stage],
    update: Variables,
    received: Broadcast,
    memory: Named,
    client: Array,
    num_clients: int,
    key: Key,
    round_key: Key,
) -> tuple[Variables, Named, tuple[Named, ...]]:
    """Send one client's update through all stages.

    Args:
        stages: The stages.
        update: The finished update, finite.
        received: The broadcast of the round.
        memory: The client's memory.
        client: The client's id.
        num_clients: The number of clients of the run.
        key: The key of (seed, round, client id).
        round_key: The key shared by clients and server.

    Returns:
        (The update as the server receives it, the new memory of the stages, the values of each stage to sum over
        clients.)
    """
    kept, statistics = list(memory.get(MEMORY, [()] * len(stages))), []
    own_key = jax.random.fold_in(key, jnp.uint32(_CLIENT))
    for number, stage in enumerate(stages):
        if stage.send is None:
            statistics.append({})
            continue
        view = StageView(
            received=received,
            public=received.uplink[number],
            memory=kept[number],
            client=client,
            num_clients=num_clients,
            key=jax.random.fold_in(own_key, number),
            round_key=jax.random.fold_in(round_key, number),
        )
        sent: Sent = stage.send(_seen(stage, update), view)
        update, kept[number] = update | sent.update, sent.memory
        statistics.append(dict(sent.statistics))
    return update, {MEMORY: tuple(kept)} if MEMORY in memory else {}, tuple(statistics)


def is_lying(stages: Sequence[Stage], clients: Array, num_clients: int) -> Array | None:
    """Whether clients with these ids attack in a stage, [...] bool; None if no stage is an attack."""
    masks = [stage.attackers(clients, num_clients) for stage in stages if stage.attackers]
    return functools.reduce(jnp.logical_or, masks) if masks else None


def corrupt(
    stages: Sequence[Stage], stack: Variables, view: ServerView, server: ServerState, num_clients: int, key: Key
) -> Variables:
    """Replace the updates of attackers that know the updates of all other clients.

    Args:
        stages: The stages.
        stack: The updates of the cohort, leaves [cohort, ...].
        view: The view of the server.
        server: The state of the server.
        num_clients: The number of clients of the run.
        key: The server's key of the round.

    Returns:
        The updates that arrive, zeros for absent clients.
    """
    for number, stage in enumerate(stages):
        if stage.corrupt is None:
            continue
        known = CorruptView(
            view.received,
            view.cohort,
            view.is_present,
            num_clients,
            server.uplink[number],
            jax.random.fold_in(jax.random.fold_in(key, number), 1),
        )
        arrived = stage.corrupt(_seen(stage, stack), known)
        stack = stack | tree.where(view.is_present, arrived, tree.zeros_like(arrived))
    return stack


def receive(
    stages: Sequence[Stage],
    update: Variables,
    statistics: tuple[Named, ...],
    view: ServerView,
    server: ServerState,
    num_clients: int,
    key: Key,
    expected_clients: float,
) -> tuple[Variables, tuple[PyTree, ...]]:
    """Apply the stages to the aggregated update, in order.

    Args:
        stages: The stages.
        update: The aggregator's update.
        statistics: The sums of values that clients sent besides their updates.
        view: The view of the server.
        server: The state of the server.
        num_clients: The number of clients of the run.
        key: The server's key of the round.
        expected_clients: The expected number of clients per round.

    Returns:
        (The update for the server optimizer, the new state of each stage.)
    """
    states = list(server.uplink)
    for number, stage in enumerate(stages):
        if stage.receive is None:
            continue
        own_key = jax.random.fold_in(key, number)
        known = ReceiveView(view, statistics[number], states[number], own_key, num_clients, expected_clients)
        changed, states[number] = stage.receive(_seen(stage, update), known)
        update = update | changed
    return update, tuple(states)


def check_stages(algorithm: Algorithm) -> None:
    """Raise InputError if a stage does not support its algorithm."""
    for stage in algorithm.uplink:
        stage.check(algorithm)


def is_stacked(stages: Sequence[Stage]) -> bool:
    """Whether a stage needs the updates of the whole cohort at once."""
    return any(stage.corrupt is not None for stage in stages)


def hides_examples(stages: Sequence[Stage]) -> bool:
    """Whether a stage hides clients' numbers of examples from the server."""
    return any(stage.hides_examples for stage in stages)


def count_bits(stages: Sequence[Stage], upload: Upload, part: Variables | None = None) -> float:
    """Count the bits of a client's upload: the update after all stages, and everything else as it is.

    Args:
        stages: The stages.
        upload: The shapes of one client's upload.
        part: The shapes of the client's part of the update. Stages act on the whole update: those with messages of
            their own encode all its entries. None: the whole update.

    Returns:
        Bits, an integer for stages with messages of fixed length.
    """
    bits = 8 * tree.num_bytes(upload._replace(update={}))
    sizes = {name: 8.0 * tree.num_bytes(leaves) for name, leaves in (part or upload.update).items()}
    for stage in stages:
        shapes = _seen(stage, upload.update)
        own = math.fsum(sizes[name] for name in shapes)
        after = stage.bits(own, shapes)
        # The bits of a single message over several collections are counted with the first collection.
        sizes |= dict.fromkeys(shapes, 0.0) | {next(iter(shapes)): after} if shapes else {}
    return bits + math.fsum(sizes.values())


def _seen(stage: Stage, update: Variables) -> Variables:
    return update if stage.collections == "all" else {"params": update["params"]}

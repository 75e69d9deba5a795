"""The one meeting place of an algorithm's slots: a whole round as one pure function.

`make_round` knows no algorithm. Survey, local training, upload, aggregation, server optimizer, replies and client
state are traced together, so that XLA compiles them as one program.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp

from fedjax_het import sharing, tree
from fedjax_het.algorithm import Algorithm
from fedjax_het.engine import client_side, placement, server_side
from fedjax_het.engine.layout import Layout, vmapped
from fedjax_het.engine.participation import Participation, everyone
from fedjax_het.engine.problem import Channel, LocalProblem, Unfilled
from fedjax_het.errors import InputError
from fedjax_het.types import (
    Array,
    Broadcast,
    ClientData,
    ClientState,
    Key,
    Model,
    Named,
    ServerState,
    ServerView,
    State,
    Tally,
    Upload,
    Variables,
)


class RoundMetrics(NamedTuple):
    loss: Array  # [] training loss, weighted by examples; NaN if nobody reported
    num_reporting: Array  # []
    num_nonfinite: Array  # []
    cohort: Array  # [cohort] who was asked
    is_nonfinite: Array  # [cohort] whose upload was dropped


class Transcript(NamedTuple):
    """Everything that crossed the wire in a round."""

    received: Broadcast
    answers: Named  # leaves [cohort, ...]
    uploads: Upload  # leaves [cohort, ...]
    replies: Variables  # leaves [cohort, ...]


class Round(NamedTuple):
    init: Callable[[Key, ClientData], State]
    step: Callable[[State, ClientData, Key], tuple[State, RoundMetrics]]
    explain: Callable[[State, ClientData, Key], tuple[State, RoundMetrics, Transcript]]  # step, and what was said in it
    problem: LocalProblem


def make_round(
    algorithm: Algorithm,
    model: Model,
    num_clients: int,
    *,
    participation: Participation | None = None,
    layout: Layout = vmapped,
    prepare: Callable[[Array], Array] = lambda inputs: inputs,
) -> Round:
    """Compose an algorithm's slots into `init(key, data)` and `step(state, data, key)`.

    The key of `step` is the run's; the round's own is folded from the round number, a client's from its id. So no
    result depends on who else takes part, on order, padding, or the layout, beyond rounding.

    prepare: stored inputs [batch, ...] -> what the model takes; it runs inside the step that reads them.
    Raises InputError for a cohort larger than the clients, a sharing pattern that matches no leaf, and, when traced,
    for a part that reads a quantity which no slot fills.
    """
    participation = participation or everyone()
    cohort_size = participation.size(num_clients)
    problem = LocalProblem(algorithm.adapt(model), algorithm.objective, prepare)
    ask = partial(client_side.ask, algorithm, problem)
    train = partial(client_side.train, algorithm, problem)

    def init(key: Key, data: ClientData) -> State:
        example = prepare(data.examples.inputs[:1])
        variables = problem.model.init(key, example)
        chosen = sharing.personal_paths(algorithm.sharing, tree.paths(variables), problem.model.layers(example))
        shared, personal = tree.partition(variables, chosen.__contains__)
        memory = {name: kept.init(variables) for name, kept in algorithm.memory.items()}
        clients = ClientState(personal, memory, jnp.zeros((), jnp.int32))
        server = ServerState(
            round=jnp.zeros((), jnp.int32),
            shared=shared,
            optimizer=algorithm.server_optimizer.init(shared["params"]),
            aggregator=algorithm.aggregator.init(shared, num_clients),
            published={
                name: summary.init(problem, shared, num_clients, cohort_size)
                for name, summary in algorithm.published.items()
            },
        )
        everyones = jax.tree.map(lambda x: jnp.broadcast_to(x, (num_clients, *jnp.shape(x))), clients)
        return State(server, everyones, Tally(jnp.zeros((), jnp.int32), jnp.zeros((), jnp.int32)))

    def explain(state: State, data: ClientData, key: Key) -> tuple[State, RoundMetrics, Transcript]:
        server = state.server
        drawing, training = jax.random.split(jax.random.fold_in(key, server.round))
        cohort, is_available = participation.draw(drawing, num_clients)
        slots = client_side.slots(state.clients, data, cohort, is_available, training, layout.padded(cohort_size))

        received = Broadcast(server.round, server.shared, server.published)
        if algorithm.survey:
            answers = layout.map(ask, (received, data.examples), slots)
            slots = slots._replace(answers=answers)
            received = received._replace(published=publish(received, unpadded(answers), slots, cohort))

        outcome, summed = layout.map_and_sum(train, (received, data.examples), slots)
        outcome = unpadded(outcome)
        uploads = outcome.upload._replace(reports=Channel("reports", outcome.upload.reports))
        view = ServerView(received, uploads, cohort, outcome.is_present, num_clients, summed or None)
        try:
            aggregate, aggregator = algorithm.aggregator.update(problem, server.aggregator, view)
        except Unfilled as unfilled:
            raise InputError(f"the aggregator {unfilled}") from None
        shared, optimizer = server_side.server_step(algorithm.server_optimizer, server, aggregate.update)
        published = server_side.summarised(algorithm.published, received.published, outcome.upload.reports, view)

        replied = outcome.state._replace(personal=tree.merge(outcome.state.personal, aggregate.replies))
        clients = tree.where(outcome.is_present, replied, outcome.state)
        updated = ServerState(server.round, shared, optimizer, aggregator, published)
        server = tree.where(jnp.any(outcome.is_present), updated, server)
        metrics = RoundMetrics(
            loss=server_side.weighted_loss(outcome.loss, outcome.upload.num_examples),
            num_reporting=jnp.sum(outcome.is_present, dtype=jnp.int32),
            num_nonfinite=jnp.sum(outcome.is_nonfinite, dtype=jnp.int32),
            cohort=cohort,
            is_nonfinite=outcome.is_nonfinite,
        )
        tally = Tally(state.tally.reports + metrics.num_reporting, state.tally.nonfinite + metrics.num_nonfinite)
        everyones = placement.put_back(state.clients, cohort, clients)
        after = State(server._replace(round=state.server.round + 1), everyones, tally)
        return after, metrics, Transcript(received, unpadded(slots.answers), outcome.upload, aggregate.replies)

    def publish(received: Broadcast, answers: dict, slots: client_side.Slot, cohort: Array) -> dict:
        """What the survey's answers become, in time for this round's training."""
        counts = jnp.asarray(slots.rows[0].count[:cohort_size], float)
        is_present = (counts > 0) & jax.vmap(tree.is_finite)(answers)
        answers = tree.where(is_present, answers, tree.zeros_like(answers))
        asked = Upload({}, answers, counts, jnp.zeros_like(counts))
        view = ServerView(received, asked, cohort, is_present, num_clients)
        return server_side.summarised(algorithm.published, received.published, answers, view)

    def unpadded(stack):
        return jax.tree.map(lambda x: x[:cohort_size], stack)

    return Round(init, lambda *arguments: explain(*arguments)[:2], explain, problem)

"""The one meeting place of an algorithm's slots: a whole round as one pure function.

`make_round` knows no algorithm. Survey, local training, upload, aggregation, server optimizer, replies and client
state are traced together, so that XLA compiles them as one program.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp

from fedjax_het import tree
from fedjax_het.algorithm import Algorithm
from fedjax_het.engine.parallel.layout import Layout, vmapped
from fedjax_het.engine.parallel.update_stack import StackedUpdates
from fedjax_het.engine.round import client_step, initialization, server_step
from fedjax_het.engine.round.client_step import Cohort
from fedjax_het.engine.round.participation import Participation, full
from fedjax_het.engine.round.population import with_population
from fedjax_het.engine.round.problem import LocalProblem, SlotView
from fedjax_het.engine.round.update_plan import StackPlan, plan_stack
from fedjax_het.types import (
    Array,
    Broadcast,
    ClientData,
    Key,
    Model,
    Named,
    RunCounters,
    ServerState,
    ServerView,
    State,
    Upload,
    Variables,
)


class RoundMetrics(NamedTuple):
    loss: Array  # [] training loss, weighted by examples; NaN if nobody reported
    num_reporting: Array  # [] uploads that the server used
    num_nonfinite: Array  # [] uploads that were dropped
    cohort: Array  # [cohort] who was asked
    is_nonfinite: Array  # [cohort] whose upload was dropped
    is_rejected: Array  # [] the uploads were finite, but what the server made of them was not: all were dropped


class RoundMessages(NamedTuple):
    """Everything that crossed the wire in a round."""

    received: Broadcast
    answers: Named  # leaves [cohort, ...]
    uploads: Upload  # leaves [cohort, ...]
    replies: Variables  # leaves [cohort, ...]


class Round(NamedTuple):
    """One algorithm's round.

    begin: (key, stored inputs) -> the state before everything, `clients` being any one client's.
    draw: (key, round number) -> who takes part, known as far ahead as anybody wants to look.
    train: the round of a cohort alone. It takes and gives back the state with just the cohort's clients, leaves
    [slots, ...] in and [cohort, ...] out, and sees the cohort's rows, leaves [slots, ...].
    init, step, explain: with everyone's states and data at hand; step is draw and train, explain tells what was said in
    it.
    """

    problem: LocalProblem
    cohort_size: int
    begin: Callable[[Key, Array], State]
    draw: Callable[[Key, Array], Cohort]
    train: Callable[[State, Cohort, ClientData, Key], tuple[State, RoundMetrics, RoundMessages]]
    init: Callable[[Key, ClientData], State]
    step: Callable[[State, ClientData, Key], tuple[State, RoundMetrics]]
    step_with_messages: Callable[[State, ClientData, Key], tuple[State, RoundMetrics, RoundMessages]]


def make_round(
    algorithm: Algorithm,
    model: Model,
    num_clients: int,
    *,
    num_training: int | None = None,
    participation: Participation | None = None,
    layout: Layout = vmapped,
    prepare: Callable[[Array], Array] = lambda inputs: inputs,
    augment: Callable[[Key, Array, Array], tuple[Array, Array]] | None = None,
) -> Round:
    """Compose an algorithm's slots into `init(key, data)` and `step(state, data, key)`, and what these are made of.

    The key of `step` is the run's; the round's own is folded from the round number, a client's from its id. So no
    result depends on who else takes part, on order, padding, or the layout, beyond rounding.

    num_training: clients that have training examples, the N of the papers; those without take no part in any mean over
    all clients. By default everyone.
    prepare: stored inputs [batch, ...] -> what the model takes; it runs inside the step that reads them.
    augment: (key, stored inputs, labels) -> both as the model takes them in training, where that is something else.
    Raises InputError for a cohort larger than the clients, a sharing rule that chooses no leaf, and, when traced,
    for a part that reads a quantity which no slot fills.
    """
    participation = participation or full()
    cohort_size = participation.size(num_clients)
    num_training = num_clients if num_training is None else num_training
    problem = LocalProblem(algorithm.adapt(model), algorithm.objective, prepare, augment)
    ask = partial(client_step.run_survey, algorithm, problem)
    begin = partial(initialization.initial_state, algorithm, problem, num_clients, cohort_size)

    def keys(key: Key, number: Array) -> Array:
        """[2]: for drawing the cohort, for all that its clients draw."""
        return jax.random.split(jax.random.fold_in(key, number))

    def draw(key: Key, number: Array) -> Cohort:
        num_padding = layout.round_up(cohort_size) - cohort_size
        drawn = participation.draw(keys(key, number)[0], num_clients)
        return Cohort(*(jnp.pad(x, (0, num_padding)) for x in drawn))

    def train(state: State, cohort: Cohort, data: ClientData, key: Key) -> tuple[State, RoundMetrics, RoundMessages]:
        server, ids = state.server, cohort.ids[:cohort_size]
        slots = client_step.cohort_members(state.clients, data, cohort, keys(key, server.round)[1])

        received = Broadcast(server.round, server.shared, server.published)
        if algorithm.survey:
            answers = layout.map(ask, (received, data.examples), slots)
            slots = slots._replace(answers=answers)
            received = received._replace(published=publish(received, unpadded(answers), slots, ids))

        plans = []

        def plan_for(upload: Upload) -> StackPlan:
            if not plans:  # the clients are traced more than once
                plans.append(plan_stack(algorithm, problem, server, received, upload, ids, num_training))
            return plans[0]

        train_one = partial(client_step.train_client, algorithm, problem, plan_for)
        outcome, sums = layout.map_and_sum(train_one, (received, data.examples), slots)
        outcome = unpadded(outcome)
        updates = StackedUpdates(outcome.upload.update, layout)
        uploads = outcome.upload._replace(update={}, reports=SlotView("reports", outcome.upload.reports))
        # One number per client is needed on every device: cut along the clients, what the server computes from it,
        # clients by clients, would be cut, and gathered, too.
        whole = lambda tree: jax.tree.map(lambda x: layout.replicate_traced(x) if x.ndim == 1 else x, tree)  # noqa: E731
        view = ServerView(received, whole(uploads), ids, whole(outcome.is_present), num_training, updates)
        aggregate, aggregator = server_step.aggregate(algorithm.aggregator, problem, server.aggregator, view, sums)
        shared, optimizer = server_step.apply_server_optimizer(algorithm.server_optimizer, server, aggregate.update)
        published = server_step.summarise(algorithm.published, received.published, outcome.upload.reports, view, sums)

        # Finite updates can have an infinite aggregate. A round whose result is not finite changes nobody's state.
        updated = ServerState(server.round, shared, optimizer, aggregator, published)
        is_finite = tree.is_finite((updated, aggregate.replies))
        is_used = outcome.is_present & is_finite
        is_nonfinite = outcome.is_nonfinite | (outcome.is_present & ~is_finite)
        replied = outcome.state._replace(personal=tree.merge(outcome.state.personal, aggregate.replies))
        clients = tree.where(is_used, replied, unpadded(slots.state))
        server = tree.where(jnp.any(is_used), updated, server)
        metrics = RoundMetrics(
            loss=server_step.weighted_mean_loss(outcome.loss, outcome.upload.num_examples),
            num_reporting=jnp.sum(is_used, dtype=jnp.int32),
            num_nonfinite=jnp.sum(is_nonfinite, dtype=jnp.int32),
            cohort=ids,
            is_nonfinite=is_nonfinite,
            is_rejected=jnp.any(outcome.is_present) & ~is_finite,
        )
        tally = RunCounters(
            state.counters.reports + metrics.num_reporting, state.counters.nonfinite + metrics.num_nonfinite
        )
        after = State(server._replace(round=state.server.round + 1), clients, tally)
        return after, metrics, RoundMessages(received, unpadded(slots.answers), outcome.upload, aggregate.replies)

    def publish(received: Broadcast, answers: dict, slots: client_step.CohortMember, ids: Array) -> dict:
        """What the survey's answers become, in time for this round's training."""
        counts = jnp.asarray(slots.rows[0].count[:cohort_size], float)
        is_present = (counts > 0) & jax.vmap(tree.is_finite)(answers)
        answers = tree.where(is_present, answers, tree.zeros_like(answers))
        asked = Upload({}, answers, counts, jnp.zeros_like(counts))
        view = ServerView(received, asked, ids, is_present, num_training, StackedUpdates({}, layout))
        return server_step.summarise(algorithm.published, received.published, answers, view)

    def unpadded(stack):
        return jax.tree.map(lambda x: x[:cohort_size], stack)

    def init(key: Key, data: ClientData) -> State:
        return initialization.broadcast_clients(begin(key, data.examples.inputs), num_clients)

    def explain(state: State, data: ClientData, key: Key) -> tuple[State, RoundMetrics, RoundMessages]:
        cohort = draw(key, state.server.round)
        with_everyone = with_population(train, participation.is_everyone)
        return with_everyone(state, cohort, client_step.cohort_data(data, cohort), key)

    def step(state: State, data: ClientData, key: Key) -> tuple[State, RoundMetrics]:
        return explain(state, data, key)[:2]

    return Round(problem, cohort_size, begin, draw, train, init, step, explain)

"""Composition of an algorithm's slots into a round, one pure function.

`make_round` knows no algorithm. Survey, local training, upload, aggregation, server optimizer, replies and client
state are traced together, so that XLA compiles them as one program.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Bool, Float, Int

from fedjax_het import tree
from fedjax_het.algorithm import Algorithm, Personalization
from fedjax_het.data.augmentation import Augmentation
from fedjax_het.engine.parallel.layout import Layout, vmapped
from fedjax_het.engine.parallel.update_stack import StackedUpdates
from fedjax_het.engine.round import client_step, initialization, server_step, uplink
from fedjax_het.engine.round.asynchronous import Asynchronous
from fedjax_het.engine.round.client_step import Cohort, Common
from fedjax_het.engine.round.event_schedule import EventSchedule
from fedjax_het.engine.round.participation import Participation, derive_keys, full
from fedjax_het.engine.round.population import with_population
from fedjax_het.engine.round.problem import LocalProblem, SlotView
from fedjax_het.engine.round.timing import Timing
from fedjax_het.engine.round.update_plan import StackPlan, pack_for, plan_stack
from fedjax_het.types import (
    Array,
    Broadcast,
    ClientData,
    HostArray,
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
    """The metrics of one round."""

    loss: Float[Array, ""]  # training loss, weighted by examples; NaN if no client reported
    num_reporting: Int[Array, ""]  # uploads that the server used
    num_nonfinite: Int[Array, ""]  # uploads that were dropped
    cohort: Int[Array, "cohort"]  # ids of the clients that were asked
    is_nonfinite: Bool[Array, "cohort"]  # whether the upload was dropped
    is_rejected: Bool[Array, ""]  # the uploads were finite, but what the server made of them was not: all were dropped
    num_late: Int[Array, ""] | None = None  # clients that the deadline was too short for; None without a timing
    seconds: Float[Array, ""] | None = None  # of this round on the virtual clock
    staleness: Int[Array, "cohort"] | None = None  # steps of the server since a client began; None if synchronous


class RoundMessages(NamedTuple):
    """The messages between server and clients in a round."""

    received: Broadcast
    answers: Named  # leaves [cohort, ...]
    uploads: Upload  # leaves [cohort, ...]
    replies: Variables  # leaves [cohort, ...]


class Round(NamedTuple):
    """One algorithm's round.

    initial_state: (key, stored inputs) -> the state before the first round, with `clients` of a single client.
    draw: (key, round number, schedule of the run if it is asynchronous) -> the cohort, which depends on nothing else
        and can be drawn ahead of time.
    overflow: (key, round number) -> how many clients were drawn for whom the cohort had no place; None: never any.
    train: the round of a cohort. The clients of its state are the cohort's alone, leaves [slots, ...] before and
    [cohort, ...] after, and so are its data, leaves [slots, ...].
    init, step, step_with_messages: the same for a state and data of all clients; `step`, (state, data, key, schedule or
    None), draws and trains, and `step_with_messages` also returns the messages.
    personalize: the algorithm's rule for the models that are evaluated as the clients' own.
    """

    problem: LocalProblem
    cohort_size: int
    initial_state: Callable[[Key, HostArray], State]
    draw: Callable[[Key, Array, EventSchedule | None], Cohort]
    overflow: Callable[[Key, Array], Array] | None
    train: Callable[[State, Cohort, ClientData, Key], tuple[State, RoundMetrics, RoundMessages]]
    init: Callable[[Key, ClientData], State]
    step: Callable[..., tuple[State, RoundMetrics]]
    step_with_messages: Callable[..., tuple[State, RoundMetrics, RoundMessages]]
    personalize: Personalization | None = None


def make_round(
    algorithm: Algorithm,
    model: Model,
    num_clients: int,
    *,
    num_training: int | None = None,
    participation: Participation | None = None,
    timing: Timing | None = None,
    asynchronous: Asynchronous | None = None,
    layout: Layout = vmapped,
    prepare: Callable[[Array], Array] = lambda inputs: inputs,
    augment: Augmentation | None = None,
) -> Round:
    """Compose an algorithm's slots into `init(key, data)` and `step(state, data, key)`, and the functions inside them.

    The key of `step` is the run's; the round's own is folded from the round number, a client's from its id. So no
    result depends on who else takes part, on order, padding, or the layout, beyond rounding.

    Args:
        algorithm: The algorithm.
        model: The model.
        num_clients: The number of clients.
        num_training: The number of clients that have training examples, the papers' N; clients without take no part in
            means over all clients. None is all.
        participation: The rule that draws cohorts; None is all clients in every round.
        timing: How long clients take, and the deadline of a round; None has no clock, and so have asynchronous rounds,
            whose schedule keeps it.
        asynchronous: The rule of asynchronous rounds; `participation` is then that of a step of the server.
        layout: The layout of the client axis on devices.
        prepare: Stored inputs [batch, ...] -> inputs of the model; it runs inside the step that reads them.
        augment: (key, stored inputs, labels) -> inputs of the model and labels in training; None trains on `prepare`.

    Returns:
        The round.

    Raises:
        InputError: The cohort is larger than the number of clients; when traced, a sharing rule chooses no leaf, or a
            slot reads a quantity that no slot fills.
    """
    uplink.check_stages(algorithm)
    if timing:
        timing.check(num_clients)
    stages = algorithm.uplink
    participation = participation or full()
    cohort_size = participation.size(num_clients)
    num_training = num_clients if num_training is None else num_training
    problem = LocalProblem(algorithm.adapt(model), algorithm.objective, prepare, augment, algorithm.evaluated)
    survey_client = partial(client_step.run_survey, algorithm, problem)
    num_versions = asynchronous.num_versions if asynchronous else 1
    has_clock = timing is not None or asynchronous is not None

    def initial_state(key: Key, inputs: HostArray) -> State:
        state = initialization.initial_state(algorithm, problem, num_clients, cohort_size, has_clock, key, inputs)
        if num_versions > 1:
            history = tree.broadcast(broadcast(state.server), num_versions)
            state = state._replace(server=state.server._replace(history=history))
        return state

    def broadcast(server: ServerState) -> Broadcast:
        return Broadcast(server.round, server.shared, server.published, uplink.publish(stages, server))

    def draw(key: Key, number: Array, schedule: EventSchedule | None = None) -> Cohort:
        num_padding = layout.round_up(cohort_size) - cohort_size
        padded = lambda x: jnp.pad(x, (0, num_padding))  # noqa: E731
        if schedule is None:
            return Cohort(*map(padded, participation.draw(derive_keys(key, number)[0], num_clients, number)))
        events = schedule.step(number)
        is_here = padded(jnp.ones(cohort_size, bool))
        slots = padded(events.clients), is_here, padded(events.start), padded(events.draw)
        return Cohort(*slots, events.num_late, events.seconds)

    def train(state: State, cohort: Cohort, data: ClientData, key: Key) -> tuple[State, RoundMetrics, RoundMessages]:
        server, ids = state.server, jnp.asarray(cohort.ids[:cohort_size])
        clients_key = derive_keys(key, server.round)[1]
        own_keys = clients_key if cohort.draw is None else jax.vmap(derive_keys, (None, 0))(key, cohort.draw)[:, 1]
        members = client_step.cohort_members(state.clients, data, cohort, own_keys)
        history, server = server.history, server._replace(history=())
        round_key, server_key = uplink.round_keys(clients_key) if stages else (None, clients_key)

        received = broadcast(server)
        if algorithm.survey:
            answers = layout.map(survey_client, Common(received, data.examples), members)
            members = members._replace(answers=answers)
            received = received._replace(published=publish(received, unpadded(answers), members, ids))

        plans = []

        def plan_for(upload: Upload) -> StackPlan:
            if not plans:  # the clients are traced more than once
                plans.append(plan_stack(algorithm, problem, server, received, upload, ids, num_training))
            return plans[0]

        train_client = partial(
            client_step.train_client, algorithm, problem, num_clients, timing, asynchronous, plan_for
        )
        common = Common(received, data.examples, round_key, history if num_versions > 1 else None)
        results, sums = layout.map_and_sum(train_client, common, members)
        results = unpadded(results)
        updates = StackedUpdates(results.upload.update, layout)
        uploads = results.upload._replace(update={}, reports=SlotView("reports", results.upload.reports))
        # Arrays of one number per client are replicated: were they sharded along the clients, XLA would shard what the
        # server computes from them, such as a matrix of clients by clients, and gather it again.
        replicate = lambda tree: jax.tree.map(lambda x: layout.constrain_replicated(x) if x.ndim == 1 else x, tree)  # noqa: E731
        view = ServerView(received, replicate(uploads), ids, replicate(results.is_present), num_training, updates)
        if uplink.is_stacked(stages):
            arrived = uplink.corrupt(stages, updates.tensors(), view, server, num_clients, server_key)
            arrived = pack_for(plans[0], arrived)
            view = view._replace(updates=StackedUpdates(arrived, layout))
            results = results._replace(upload=results.upload._replace(update=arrived))
        aggregate, aggregator = server_step.aggregate(
            algorithm.aggregator, problem, server.aggregator, view, sums.updates
        )
        update, uplink_state = uplink.receive(
            stages,
            aggregate.update,
            sums.sides,
            view,
            server,
            num_clients,
            server_key,
            participation.expected_size(num_clients),
        )
        shared, optimizer = server_step.apply_server_optimizer(algorithm.server_optimizer, server, update)
        published = server_step.update_published(
            algorithm.published, received.published, results.upload.reports, view, sums.updates
        )

        # Finite updates can have an infinite aggregate. A round whose result is not finite changes no state.
        updated = ServerState(server.round, shared, optimizer, aggregator, published, uplink_state)
        is_finite = tree.is_finite((updated, aggregate.replies))
        is_used = results.is_present & is_finite
        is_nonfinite = results.is_nonfinite | (results.is_present & ~is_finite)
        replied = results.state._replace(personal=tree.merge(results.state.personal, aggregate.replies))
        clients = tree.where(is_used, replied, unpadded(members.state))
        is_step = is_finite if any(stage.steps_without_reports for stage in stages) else jnp.any(is_used)
        server = tree.where(is_step, updated, server)
        metrics = RoundMetrics(
            loss=server_step.weighted_mean_loss(results.loss, results.upload.num_examples),
            num_reporting=jnp.sum(is_used, dtype=jnp.int32),
            num_nonfinite=jnp.sum(is_nonfinite, dtype=jnp.int32),
            cohort=ids,
            is_nonfinite=is_nonfinite,
            is_rejected=jnp.any(results.is_present) & ~is_finite,
        )
        counters = RunCounters(
            state.counters.reports + metrics.num_reporting, state.counters.nonfinite + metrics.num_nonfinite
        )
        if timing:
            seconds = timing.duration(results.seconds, results.is_late)
            metrics = metrics._replace(num_late=jnp.sum(results.is_late, dtype=jnp.int32), seconds=seconds)
            counters = counters._replace(seconds=state.counters.seconds + seconds)  # pyrefly: ignore[unsupported-operation]
        server = server._replace(round=state.server.round + 1)
        if asynchronous:
            staleness = state.server.round - jnp.asarray(cohort.start)[:cohort_size]
            seconds = jnp.asarray(cohort.seconds)
            metrics = metrics._replace(num_late=jnp.asarray(cohort.num_late), seconds=seconds, staleness=staleness)
            counters = counters._replace(seconds=state.counters.seconds + seconds)  # pyrefly: ignore[unsupported-operation]
        if num_versions > 1:
            server = server._replace(history=tree.put(history, server.round % num_versions, broadcast(server)))
        after = State(server, clients, counters)
        return after, metrics, RoundMessages(received, unpadded(members.answers), results.upload, aggregate.replies)

    def publish(received: Broadcast, answers: dict, members: client_step.CohortMember, ids: Array) -> dict:
        """Update what is published with the answers to the survey, before clients train."""
        counts = jnp.asarray(members.rows[0].count[:cohort_size], float)
        is_present = (counts > 0) & jax.vmap(tree.is_finite)(answers)
        answers = tree.where(is_present, answers, tree.zeros_like(answers))
        uploads = Upload({}, answers, counts, jnp.zeros_like(counts))
        view = ServerView(received, uploads, ids, is_present, num_training, StackedUpdates({}, layout))
        return server_step.update_published(algorithm.published, received.published, answers, view)

    def unpadded(stack):
        return tree.take(stack, slice(cohort_size))

    def init(key: Key, data: ClientData) -> State:
        return initialization.broadcast_clients(initial_state(key, data.examples.inputs), num_clients)

    def step_with_messages(
        state: State, data: ClientData, key: Key, schedule: EventSchedule | None = None
    ) -> tuple[State, RoundMetrics, RoundMessages]:
        cohort = draw(key, state.server.round, schedule)
        train_population = with_population(train, participation.is_everyone, layout)
        return train_population(state, cohort, client_step.cohort_data(data, cohort), key)

    def step(
        state: State, data: ClientData, key: Key, schedule: EventSchedule | None = None
    ) -> tuple[State, RoundMetrics]:
        return step_with_messages(state, data, key, schedule)[:2]

    def in_round(count: Callable[[Key, int], Array]) -> Callable[[Key, Array], Array]:
        return lambda key, number: count(derive_keys(key, number)[0], num_clients)

    overflow = in_round(participation.overflow) if participation.overflow else None
    return Round(
        problem,
        cohort_size,
        initial_state,
        draw,
        overflow,
        train,
        init,
        step,
        step_with_messages,
        algorithm.personalize,
    )

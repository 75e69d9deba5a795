"""The phases of a round: broadcast, survey, clients, server, commit.

Each phase is a pure function of the `RoundSpec` and of the results of previous phases. `train_cohort` runs them in
order, and XLA compiles them as one program. Asynchrony affects the broadcast (earlier broadcasts), the clients (their
start) and the commit (staleness); a timing affects the clients (deadline) and the commit (seconds); the uplink affects
the broadcast, the clients (`send`) and the server (`corrupt`, `receive`).
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedjax_het import tree
from fedjax_het.data.phases import find_phase
from fedjax_het.engine.parallel.update_stack import StackedUpdates
from fedjax_het.engine.round import client_step, mixing, model_choice, opening, selection, server_step, uplink
from fedjax_het.engine.round.architectures import map_clients
from fedjax_het.engine.round.client_step import ClientResult, Cohort, CohortMember, Common, Sums
from fedjax_het.engine.round.participation import derive_keys
from fedjax_het.engine.round.records import RoundMessages, RoundMetrics, RoundSpec
from fedjax_het.engine.round.update_plan import pack_for
from fedjax_het.placeholders import HIDDEN_EXAMPLE_COUNTS
from fedjax_het.problem import SlotView, order_public
from fedjax_het.types import (
    Array,
    Broadcast,
    ClientData,
    Key,
    RunCounters,
    ServerState,
    ServerView,
    State,
    Upload,
    Variables,
)

_PUBLIC, _VIEW = 0xFFFFFFFB, 0xFFFFFFFC  # folded into the server's key of a round; never the number of a stage


class _ServerDecision(NamedTuple):
    """The result of the server's aggregation, before the check that it is finite."""

    server: ServerState
    replies: Variables  # leaves [cohort, ...]
    uploads: Upload  # as they arrived, leaves [cohort, ...]


def train_cohort(
    spec: RoundSpec, state: State, cohort: Cohort, data: ClientData, key: Key
) -> tuple[State, RoundMetrics, RoundMessages]:
    """Run one round of a cohort.

    Args:
        spec: The constants of all rounds.
        state, cohort, data: Of the clients of the cohort, leaves [slots, ...].
        key: The key of the run.

    Returns:
        (The state with clients [cohort, ...], the metrics, the messages.)
    """
    clients_key = derive_keys(key, state.server.round)[1]
    own_keys = clients_key if cohort.draw is None else jax.vmap(derive_keys, (None, 0))(key, cohort.draw)[:, 1]
    members = client_step.cohort_members(state.clients, data, cohort, own_keys)
    ids = jnp.asarray(cohort.ids[: spec.cohort_size])
    meeting = None
    if rule := spec.algorithm.mixing:
        is_shifted = spec.participation.is_everyone and spec.layout.num_devices > 1
        meeting = mixing.Meeting(rule, spec.num_clients, clients_key, state.server.round, ids, is_shifted)
        is_here = members.is_here & (members.rows[0].count > 0)
        members = members._replace(state=mixing.mix_before(meeting, state, is_here))
    round_key, server_key = uplink.round_keys(clients_key)
    server = state.server._replace(history=(), frozen={}, participation=())
    history = state.server.history if spec.num_versions > 1 else None
    round_key = round_key if spec.algorithm.uplink else None
    examples = order_public(data.examples, jax.random.fold_in(server_key, jnp.uint32(_PUBLIC)))
    common = Common(broadcast(spec, state.server), examples, state.server.frozen, round_key, history)
    asked = spec.algorithm, spec.problem, spec.layout, common, members, cohort
    cohort, members, known = selection.poll_clients(spec.participation.poll, state.server, len(ids), *asked)
    state = state._replace(server=state.server._replace(participation=known))
    server, common, members = survey_clients(spec, server, common, members, ids)
    if spec.num_opening:
        state = state._replace(server=state.server._replace(published=server.published))
    server, common = model_choice.combine_models(spec.algorithm.models, server, common)
    results, sums = train_clients(spec, common, members)
    bound = spec._replace(problem=common.bind(spec.problem))
    decision = update_server(bound, server, common, results, sums, ids, server_key)
    after, metrics = commit(spec, state, cohort, members, results, decision)
    if meeting:
        before = state._replace(clients=_unpad(spec, state.clients))
        after = mixing.mix_after(meeting, spec.num_training, before, after)
    messages = RoundMessages(common.received, _unpad(spec, members.answers), decision.uploads, decision.replies)
    return after, metrics, messages


def broadcast(spec: RoundSpec, server: ServerState) -> Broadcast:
    """The server's message to all clients of a round."""
    told, phase = uplink.publish(spec.algorithm.uplink, server), find_phase(spec.phases, server.round)
    published = server_step.select_sent(spec.algorithm.published, server.published)
    return Broadcast(server.round, server.shared, published, told, server.base, phase)


def survey_clients(
    spec: RoundSpec, server: ServerState, common: Common, members: CohortMember, ids: Array
) -> tuple[ServerState, Common, CohortMember]:
    """Survey the clients before they train, and publish the summaries of their answers; see also `opening`."""
    algorithm, before, is_opening = spec.algorithm, server.published, server.round < spec.num_opening
    if not algorithm.survey:
        return server, common, members
    training = members
    if spec.num_opening:
        members, training = (opening.keep_members(members, is_kept) for is_kept in (is_opening, ~is_opening))
    survey = lambda *client: (client_step.run_survey(algorithm, *client), {})  # noqa: E731
    answers, _ = map_clients(spec, survey, common, members)
    training = training._replace(answers=answers)
    answers, counts = _unpad(spec, answers), jnp.asarray(members.rows[0].count[: spec.cohort_size], float)
    is_present = jax.vmap(lambda count, own: (count > 0) & tree.is_finite(own))(counts, answers)
    answers = tree.where(is_present, answers, tree.zeros_like(answers))
    uploads = Upload({}, answers, counts, jnp.zeros_like(counts))
    view = ServerView(common.received, uploads, ids, is_present, spec.num_training, StackedUpdates({}, spec.layout))
    published = server_step.update_published(algorithm.published, before, answers, view)
    published = tree.where(is_opening, published, before) if spec.num_opening else published
    received = common.received._replace(published=server_step.select_sent(algorithm.published, published))
    return server._replace(published=published), common._replace(received=received), training


def train_clients(spec: RoundSpec, common: Common, members: CohortMember) -> tuple[ClientResult, Sums]:
    """Train the clients of the cohort: (their results, leaves [cohort, ...]; the sums accumulated during training)."""
    train_client = partial(client_step.train_client, spec.algorithm, spec.num_clients, spec.timing, spec.asynchronous)
    results, sums = map_clients(spec, train_client, common, members)
    return _unpad(spec, results), sums


def update_server(
    spec: RoundSpec,
    server: ServerState,
    common: Common,
    results: ClientResult,
    sums: Sums,
    ids: Array,
    key: Key,
) -> _ServerDecision:
    """Aggregate the uploads, and update the server's model and published quantities."""
    algorithm, layout, received = spec.algorithm, spec.layout, common.received

    def replicate(leaf: Array) -> Array:
        # If arrays with one number per client were sharded along clients, XLA would shard the server's computations
        # with them, such as client-by-client matrices, and gather them again.
        return layout.constrain_replicated(leaf) if leaf.ndim == 1 else leaf

    arrived = results.upload
    uploads = arrived._replace(update={}, reports=SlotView("reports", arrived.reports))
    if uplink.hides_examples(algorithm.uplink):
        uploads = uploads._replace(num_examples=HIDDEN_EXAMPLE_COUNTS)
    is_present, uploads = jax.tree.map(replicate, (results.is_present, uploads))
    updates, own_key = StackedUpdates(arrived.update, layout), jax.random.fold_in(key, jnp.uint32(_VIEW))
    view = ServerView(received, uploads, ids, is_present, spec.num_training, updates, own_key, common.examples.public)
    if uplink.is_stacked(algorithm.uplink):
        tensors = uplink.corrupt(algorithm.uplink, updates.tensors(), view, server, spec.num_clients, key)
        arrived = arrived._replace(update=pack_for(algorithm.aggregator, tensors))
        view = view._replace(updates=StackedUpdates(arrived.update, layout))
    published = server_step.update_published(algorithm.published, server.published, arrived.reports, view, sums.updates)

    def step(model: ServerState, view: ServerView, sums: Sums) -> tuple[ServerState, Variables]:
        aggregate, aggregator = server_step.aggregate(
            algorithm.aggregator, spec.problem, model.aggregator, view, sums.updates
        )
        update, uplink_state = uplink.receive(
            algorithm.uplink,
            aggregate.update,
            sums.statistics,
            view,
            model,
            spec.num_clients,
            key,
            spec.participation.expected_size(spec.num_clients),
        )
        shared, optimizer = server_step.apply_server_optimizer(algorithm.server_optimizer, model, update)
        base = tree.add(model.base, aggregate.base) if aggregate.base else model.base
        updated = ServerState(model.round, shared, optimizer, aggregator, published, uplink_state, base=base)
        return updated, aggregate.replies

    if algorithm.models:
        updated, replies = model_choice.step_models(algorithm.models, step, server, view, sums, published)
    else:
        updated, replies = step(server, view, sums)
    return _ServerDecision(updated, replies, arrived)


def commit(
    spec: RoundSpec,
    state: State,
    cohort: Cohort,
    members: CohortMember,
    results: ClientResult,
    decision: _ServerDecision,
) -> tuple[State, RoundMetrics]:
    """Commit the results of a round if they are finite, and compute its metrics.

    Finite updates can have an infinite aggregate. A round with a nonfinite result does not change the state.
    """
    server = state.server
    is_finite = tree.is_finite(decision.server)
    if decision.replies:  # mapped, so that replies divided among devices are not gathered
        is_finite &= jnp.all(jax.vmap(tree.is_finite)(decision.replies))
    is_used = results.is_present & is_finite
    is_nonfinite = results.is_nonfinite | (results.is_present & ~is_finite)
    replied = results.state._replace(personal=tree.merge(results.state.personal, decision.replies))
    clients = tree.where(is_used, replied, _unpad(spec, members.state))
    is_step = is_finite if any(stage.steps_without_reports for stage in spec.algorithm.uplink) else jnp.any(is_used)
    updated = tree.choose(is_step, decision.server, server._replace(history=(), frozen={}, participation=()))
    known = selection.update_known(spec.participation, server, cohort, is_used, results)
    updated = updated._replace(round=server.round + 1, frozen=server.frozen, participation=known)
    if spec.num_versions > 1:
        slot = updated.round % spec.num_versions
        updated = updated._replace(history=tree.put(server.history, slot, broadcast(spec, updated)))
    metrics = RoundMetrics(
        loss=server_step.weighted_mean_loss(results.loss, results.upload.num_examples),
        num_reporting=jnp.sum(is_used, dtype=jnp.int32),
        num_nonfinite=jnp.sum(is_nonfinite, dtype=jnp.int32),
        cohort=jnp.asarray(cohort.ids[: spec.cohort_size]),
        is_nonfinite=is_nonfinite,
        is_rejected=jnp.any(results.is_present) & ~is_finite,
    )._replace(**_read_clock(spec, cohort, results, server.round))
    counted = state.counters
    counters = RunCounters(
        counted.reports + metrics.num_reporting,
        counted.nonfinite + metrics.num_nonfinite,
        None if counted.seconds is None or metrics.seconds is None else counted.seconds + metrics.seconds,
        None if counted.polled is None else counted.polled + jnp.asarray(cohort.num_polled),
    )
    return State(updated, clients, counters), metrics


def _read_clock(spec: RoundSpec, cohort: Cohort, results: ClientResult, round: Array) -> dict[str, Any]:
    """The metrics of the virtual clock; {} without one."""
    if spec.asynchronous:
        staleness = round - jnp.asarray(cohort.start)[: spec.cohort_size]
        clock = {"num_late": jnp.asarray(cohort.num_late), "seconds": jnp.asarray(cohort.seconds)}
        return clock | {"staleness": staleness}
    if spec.timing is None or results.seconds is None or results.is_late is None:
        return {}
    seconds = spec.timing.duration(results.seconds, results.is_late)
    return {"num_late": jnp.sum(results.is_late, dtype=jnp.int32), "seconds": seconds}


def _unpad(spec: RoundSpec, stack: Any) -> Any:
    """The rows of the cohort, without padding."""
    return tree.take(stack, slice(spec.cohort_size))

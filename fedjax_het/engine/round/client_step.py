"""One client's part of a round: view, survey, training and upload. Other modules map it over the cohort."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Bool, Float, Int

from fedjax_het import tree
from fedjax_het.algorithm import Algorithm, Measure, OutputMixture
from fedjax_het.engine.round import mixing, uplink
from fedjax_het.engine.round.asynchronous import Asynchronous
from fedjax_het.engine.round.timing import Timing
from fedjax_het.engine.round.update_plan import UpdateSums, pack_for, stream_sums
from fedjax_het.errors import InputError
from fedjax_het.models import select_network
from fedjax_het.placeholders import HIDDEN_TEST_ROWS, MissingSlotError, refuse_sealed
from fedjax_het.problem import Problem, SlotView
from fedjax_het.types import (
    Array,
    Broadcast,
    ClientData,
    ClientState,
    ClientView,
    Examples,
    HostArray,
    Key,
    Named,
    Rows,
    Upload,
    Variables,
)


class Cohort(NamedTuple):
    """The clients of a round: the cohort, followed by padding slots of the layout."""

    ids: Int[HostArray, "slots"]
    is_here: Bool[HostArray, "slots"]  # False: the client has dropped out or is padding, and takes no steps
    start: Int[HostArray, "slots"] | None = None  # the round whose broadcast it started from; None: this one
    draw: Int[HostArray, "slots"] | None = None  # the number of its draw; None: the round
    num_late: Int[HostArray, ""] | None = None  # dropped stale updates; None in synchronous rounds
    seconds: Float[HostArray, ""] | None = None  # since the previous step; None in synchronous rounds
    num_polled: Int[HostArray, ""] | None = None  # polled clients; None without a poll


class CohortMember(NamedTuple):
    """A client of the cohort with its state and data, or all of them, leaves [slots, ...]."""

    state: ClientState
    rows: tuple[Rows, Rows]  # train, valid
    answers: Named
    key: Key
    is_here: Bool[HostArray, "*slots"]
    client: Int[HostArray, "*slots"]  # its id
    start: Int[HostArray, "*slots"] | None = None  # see Cohort


class ClientResult(NamedTuple):
    """The result of one client's round, or of the rounds of a cohort."""

    state: ClientState
    upload: Upload  # zeros unless is_present
    loss: Float[Array, "*cohort"]
    is_present: Bool[Array, "*cohort"]
    is_nonfinite: Bool[Array, "*cohort"]
    is_late: Bool[Array, "*cohort"] | None = None  # None without a timing
    seconds: Float[Array, "*cohort"] | None = None  # on the virtual clock


class Common(NamedTuple):
    """The common inputs of all clients in a round."""

    received: Broadcast
    examples: Examples
    frozen: Variables = {}  # the leaves of the model that never change
    round_key: Key | None = None  # the key shared by clients and server; None without an uplink
    history: Broadcast | None = None  # the last broadcasts, leaves [versions, ...]; None in synchronous rounds

    def bind(self, problem: Problem, client: HostArray | int | None = None) -> Problem:
        """The problem with the leaves that clients do not train, and with the network of a client's group."""
        own, groups = {}, problem.model.groups
        if groups and client is not None:
            own = select_network(groups.assign(client) if problem.group is None else problem.group)
        return problem.bind(self.frozen | own, self.received.base)


class Sums(NamedTuple):
    """The contribution of a client to the sums over a cohort, or the sums."""

    updates: UpdateSums
    statistics: tuple[Named, ...]  # from the stages of the uplink


def cohort_data(data: ClientData, cohort: Cohort) -> ClientData:
    """The data of a cohort: the training and validation rows of its clients, and no test rows."""
    train, valid = tree.take((data.train, data.valid), cohort.ids)
    return ClientData(data.examples, train, valid, HIDDEN_TEST_ROWS)


def cohort_members(clients: ClientState, data: ClientData, cohort: Cohort, key: Key) -> CohortMember:
    """Assemble the members of a cohort; keys are folded from ids. `key` is that of the round's clients, or [slots]."""
    train, valid = (part._replace(count=jnp.where(cohort.is_here, part.count, 0)) for part in (data.train, data.valid))
    keys = jax.vmap(jax.random.fold_in, in_axes=(0 if key.ndim else None, 0))(key, cohort.ids)
    return CohortMember(clients, (train, valid), {}, keys, cohort.is_here, cohort.ids, cohort.start)


def run_survey(algorithm: Algorithm, problem: Problem, common: Common, member: CohortMember) -> Named:
    """Evaluate the survey of an algorithm on one client, before training."""
    own, model = receive(algorithm, problem, common, member)
    view = _make_view(own, member, model)._replace(models=common.received.shared if algorithm.models else None)
    return _evaluate_measures("survey", algorithm.survey, own.bind(problem, member.client), view)


def train_client(
    algorithm: Algorithm,
    num_clients: int,
    timing: Timing | None,
    asynchronous: Asynchronous | None,
    problem: Problem,
    common: Common,
    member: CohortMember,
) -> tuple[ClientResult, Sums]:
    """Run one client's round.

    If a client is absent or its results are not finite, its upload is zero and its state is unchanged.

    Args:
        algorithm: The algorithm.
        num_clients, timing: See `RoundSpec`.
        asynchronous: The treatment of updates of clients that started earlier; None in synchronous rounds.
        problem: The client's learning problem.
        common: The common inputs of all clients.
        member: The client.

    Returns:
        (The result, the contribution to the sums that are accumulated while clients train.)

    Raises:
        InputError: A slot of the algorithm reads a quantity that no slot fills.
    """
    now = common.received
    if asynchronous and asynchronous.num_versions > 1:
        started = tree.take(common.history, jnp.asarray(member.start) % asynchronous.num_versions)
        common = common._replace(received=started)
    common, model = receive(algorithm, problem, common, member)
    problem, before = common.bind(problem, member.client), _make_view(common, member, model)
    steps_in_time = jnp.zeros((), jnp.int32)
    if timing:
        steps_in_time = timing.count_steps_in_time(jnp.asarray(member.client), num_clients)
        if timing.deadline is not None and timing.late == "partial":
            before = before._replace(max_steps=steps_in_time)
    try:
        if algorithm.start:
            own = algorithm.start(problem, before, member.key)
            before = before._replace(start=own, local=own)
        trained = algorithm.local_update.train(problem, before, member.key)
    except MissingSlotError as error:
        raise InputError(f"the start rule or the local update {error}") from None
    after = before._replace(
        local=trained.variables,
        optimizer=trained.optimizer,
        metrics=problem.seal(trained.metrics),
        num_steps=trained.num_steps,
        results=SlotView("results", trained.results),
    )
    personal, shared = tree.partition_like(trained.variables, common.received.shared)
    reports = _evaluate_measures("report", algorithm.reports, problem, after)
    num_examples = jnp.asarray(member.rows[0].count, float)
    sent, known = mixing.choose_message(algorithm.mixing, common.received.shared, shared, member.state.memory)
    upload = Upload(tree.subtract(sent, known), reports, num_examples, trained.num_steps, model)
    memory = _evaluate_measures(
        "memory", {name: kept.update for name, kept in algorithm.memory.items()}, problem, after
    )
    state = ClientState(personal, memory, member.state.rounds + 1)

    has_examples, is_late, seconds = jnp.logical_and(member.is_here, member.rows[0].count > 0), None, None
    if timing:
        seconds = timing.measure(jnp.asarray(member.client), num_clients, trained.num_steps)
        seconds = jnp.where(has_examples, seconds, 0)
        is_late = has_examples & ((trained.num_steps > steps_in_time) | (trained.num_steps == 0))
        has_examples &= ~is_late
    # Of what is sent instead of its difference, which otherwise were computed for this alone.
    is_finite = tree.is_finite((upload._replace(update=sent), state, trained.metrics))
    is_present = has_examples & is_finite
    upload = tree.where(is_present, upload, tree.zeros_like(upload))
    statistics: tuple[Named, ...] = ()
    if common.round_key is not None:
        sent, kept, statistics = uplink.send(
            algorithm.uplink,
            upload.update,
            common.received,
            member.state.memory,
            jnp.asarray(member.client),
            num_clients,
            member.key,
            common.round_key,
        )
        # A stage may make finite values infinite; the server then drops the client.
        is_finite &= tree.is_finite((sent, kept, statistics))
        is_present &= is_finite
        upload = tree.where(is_present, upload._replace(update=sent), tree.zeros_like(upload))
        state = state._replace(memory=state.memory | kept)
        statistics = tree.where(is_present, statistics, tree.zeros_like(statistics))
    if algorithm.mixing:
        state = mixing.keep_message(algorithm.mixing, state, shared, tree.add(known, upload.update))
    if asynchronous:
        arrived = asynchronous.receive(upload.update, common.received, now)
        upload = upload._replace(update=tree.where(is_present, arrived, tree.zeros_like(arrived)))
    result = ClientResult(
        tree.where(is_present, state, member.state),
        upload._replace(update=pack_for(algorithm.aggregator, upload.update)),
        jnp.where(is_present, trained.metrics["loss"], 0),
        is_present,
        has_examples & ~is_finite,
        is_late,
        seconds,
    )
    return result, Sums(stream_sums(algorithm, upload, is_present), statistics)


def receive(
    algorithm: Algorithm, problem: Problem, common: Common, member: CohortMember
) -> tuple[Common, Array | None]:
    """What a client receives: the server's model, one of the server's models, or its own version without a server.

    Returns:
        (The inputs of the client with the leaves that it receives, the number of its model among several or None.)

    Raises:
        InputError: The choice of a model reads a quantity that no slot fills.
    """
    model, shared = None, mixing.receive_own(algorithm.mixing, common.received.shared, member.state)
    if algorithm.models:
        try:
            model = algorithm.models.choose(common.bind(problem, member.client), _make_view(common, member))
        except MissingSlotError as error:
            raise InputError(f"the choice of a model {error}") from None
        shared = tree.take(shared, model)
    return common._replace(received=common.received._replace(shared=shared)), model


class PersonalModel(NamedTuple):
    """A client's model between rounds."""

    variables: Variables | OutputMixture
    model: Array | None  # the number of the server's model that it would receive; None if there is only one


def make_personal_model(algorithm: Algorithm, problem: Problem, common: Common, member: CohortMember) -> PersonalModel:
    """A client's personal model between rounds: the algorithm's rule, or what it would start from.

    Args:
        algorithm: The algorithm.
        problem: The client's learning problem.
        common: The broadcast that it would receive, and all examples.
        member: The client.

    Raises:
        InputError: The rule reads a quantity that no slot fills.
    """
    common, model = receive(algorithm, problem, common, member)
    view = _make_view(common, member, model)
    if algorithm.personalize is None:
        return PersonalModel(view.start, model)
    try:
        return PersonalModel(algorithm.personalize(common.bind(problem, member.client), view, member.key), model)
    except MissingSlotError as error:
        raise InputError(f"the personalization {error}") from None


def _make_view(common: Common, member: CohortMember, model: Array | None = None) -> ClientView:
    received, start = common.received, tree.merge(common.received.shared, member.state.personal)
    return ClientView(
        received=received._replace(published=SlotView("published", received.published)),
        memory=SlotView("memory", member.state.memory),
        answers=SlotView("answers", member.answers),
        data=ClientData(common.examples, *member.rows, HIDDEN_TEST_ROWS),
        start=start,
        local=start,
        optimizer=(),
        metrics=SlotView("metrics", {}),
        num_steps=jnp.zeros((), float),
        client=jnp.asarray(member.client),
        results=SlotView("results", {}),
        model=model,
    )


def _evaluate_measures(
    kind: str, measures: Mapping[str, Measure], problem: Problem, view: ClientView
) -> dict[str, Any]:
    values = {}
    for name, measure in measures.items():
        try:
            values[name] = refuse_sealed(measure(problem, view))
        except MissingSlotError as error:
            raise InputError(f"{kind} '{name}' {error}") from None
    return values

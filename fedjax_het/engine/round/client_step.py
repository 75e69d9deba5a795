"""What happens inside the client axis: one client's view, its training, and what it hands over."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedjax_het import tree
from fedjax_het.algorithm import Algorithm, Measure
from fedjax_het.engine.round.problem import HIDDEN_TEST_ROWS, LocalProblem, MissingSlotError, SlotView
from fedjax_het.engine.round.update_plan import StackPlan, Sums, pack_for, stream_sums
from fedjax_het.errors import InputError
from fedjax_het.types import (
    Array,
    Broadcast,
    ClientData,
    ClientState,
    ClientView,
    Examples,
    Key,
    Named,
    Rows,
    Upload,
    Variables,
)


class Cohort(NamedTuple):
    """Who takes part in a round. Leaves [slots]: the cohort, and behind it places that only pad the layout."""

    ids: Array  # int32
    is_here: Array  # False: it does not answer, or is padding; it takes no step


class CohortMember(NamedTuple):
    """A place in the cohort and what the server keeps for the client in it. Leaves [slots, ...]."""

    state: ClientState
    rows: tuple[Rows, Rows]  # train, valid
    answers: Named
    key: Key
    is_here: Array
    client: Array  # its id


class ClientResult(NamedTuple):
    state: ClientState
    upload: Upload  # zeros unless is_present
    loss: Array
    is_present: Array
    is_nonfinite: Array


Common = tuple[Broadcast, Examples]


def cohort_data(data: ClientData, cohort: Cohort) -> ClientData:
    """What the clients of a cohort see of everyone's data: their own rows, and none to be tested on."""
    train, valid = tree.take((data.train, data.valid), cohort.ids)
    return ClientData(data.examples, train, valid, HIDDEN_TEST_ROWS)


def cohort_members(clients: ClientState, data: ClientData, cohort: Cohort, key: Key) -> CohortMember:
    """`clients`, `data`: those of the cohort, leaves [slots, ...]. Keys are folded from ids, not from positions."""
    rows = tuple(part._replace(count=jnp.where(cohort.is_here, part.count, 0)) for part in (data.train, data.valid))
    keys = jax.vmap(jax.random.fold_in, in_axes=(None, 0))(key, cohort.ids)
    return CohortMember(clients, rows, {}, keys, cohort.is_here, cohort.ids)


def run_survey(algorithm: Algorithm, problem: LocalProblem, common: Common, slot: CohortMember) -> Named:
    """Put the survey's questions to one client, before training."""
    return _evaluate_measures("survey", algorithm.survey, problem, _make_view(common, slot))


def train_client(
    algorithm: Algorithm,
    problem: LocalProblem,
    plan_for: Callable[[Upload], StackPlan],
    common: Common,
    slot: CohortMember,
) -> tuple[ClientResult, Sums]:
    """(one client's round, what it adds to the sums that run while clients train).

    What is not finite, or comes from nobody, leaves as zeros, and changes nothing here.
    plan_for: from the shapes of one upload, how updates will be read.
    """
    before = _make_view(common, slot)
    try:
        trained = algorithm.local_update.train(problem, before, slot.key)
    except MissingSlotError as unfilled:
        raise InputError(f"the local update {unfilled}") from None
    after = before._replace(
        local=trained.variables, optimizer=trained.optimizer, metrics=trained.metrics, num_steps=trained.num_steps
    )

    shared, personal = _split_shared(trained.variables, common[0].shared)
    reports = _evaluate_measures("report", algorithm.reports, problem, after)
    num_examples = jnp.asarray(slot.rows[0].count, float)
    upload = Upload(tree.subtract(shared, common[0].shared), reports, num_examples, trained.num_steps)
    memory = _evaluate_measures(
        "memory", {name: kept.update for name, kept in algorithm.memory.items()}, problem, after
    )
    state = ClientState(personal, memory, slot.state.rounds + 1)

    has_examples = slot.is_here & (slot.rows[0].count > 0)
    is_finite = tree.is_finite((upload, state, trained.metrics))
    is_present = has_examples & is_finite
    upload = tree.where(is_present, upload, tree.zeros_like(upload))
    plan = plan_for(upload)
    outcome = ClientResult(
        tree.where(is_present, state, slot.state),
        upload._replace(update=pack_for(plan, upload.update)),
        jnp.where(is_present, trained.metrics["loss"], 0),
        is_present,
        has_examples & ~is_finite,
    )
    return outcome, stream_sums(plan, upload, is_present)


def _make_view(common: Common, slot: CohortMember) -> ClientView:
    received, examples = common
    start = tree.merge(received.shared, slot.state.personal)
    return ClientView(
        received=received._replace(published=SlotView("published", received.published)),
        memory=SlotView("memory", slot.state.memory),
        answers=SlotView("answers", slot.answers),
        data=ClientData(examples, *slot.rows, HIDDEN_TEST_ROWS),
        start=start,
        local=start,
        optimizer=(),
        metrics=SlotView("metrics", {}),
        num_steps=jnp.zeros((), float),
        client=slot.client,
    )


def _split_shared(variables: Variables, shared: Variables) -> tuple[Variables, Variables]:
    is_shared = set(tree.paths(shared))
    return tree.partition(variables, lambda path: path not in is_shared)


def _evaluate_measures(
    kind: str, measures: Mapping[str, Measure], problem: LocalProblem, view: ClientView
) -> dict[str, Any]:
    values = {}
    for name, measure in measures.items():
        try:
            values[name] = measure(problem, view)
        except MissingSlotError as unfilled:
            raise InputError(f"{kind} '{name}' {unfilled}") from None
    return values

"""What happens inside the client axis: one client's view, its training, and what it hands over."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedjax_het import tree
from fedjax_het.algorithm import Algorithm, Measure
from fedjax_het.engine import placement
from fedjax_het.engine.problem import Channel, LocalProblem, Unfilled
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


class Slot(NamedTuple):
    """A place in the cohort and what the server keeps for the client in it. Leaves [cohort, ...]."""

    state: ClientState
    rows: tuple[Rows, Rows, Rows]  # train, valid, test
    answers: Named
    key: Key
    is_here: Array  # False: it did not answer, or only pads the layout; it takes no step
    client: Array  # its id


class Outcome(NamedTuple):
    state: ClientState
    upload: Upload  # zeros unless is_present
    loss: Array
    is_present: Array
    is_nonfinite: Array


Common = tuple[Broadcast, Examples]


def slots(clients: ClientState, data: ClientData, cohort: Array, is_available: Array, key: Key, num_slots: int) -> Slot:
    """The cohort, padded to `num_slots`. Keys are folded from ids, not from positions."""
    num_padding = num_slots - cohort.shape[0]
    ids = jnp.pad(cohort, (0, num_padding))
    is_here = jnp.pad(is_available, (0, num_padding))
    rows = tuple(
        Rows(part.index[ids], jnp.where(is_here, part.count[ids], 0)) for part in (data.train, data.valid, data.test)
    )
    keys = jax.vmap(jax.random.fold_in, in_axes=(None, 0))(key, ids)
    states = placement.of_cohort(clients, cohort, data.train.count.shape[0], num_slots)
    return Slot(states, rows, {}, keys, is_here, ids)


def ask(algorithm: Algorithm, problem: LocalProblem, common: Common, slot: Slot) -> Named:
    """Put the survey's questions to one client, before training."""
    return _measured("survey", algorithm.survey, problem, _view(common, slot))


def train(algorithm: Algorithm, problem: LocalProblem, common: Common, slot: Slot) -> tuple[Outcome, Variables]:
    """(one client's round, what it adds to the weighted sum of updates, if the aggregator wants one).

    What is not finite, or comes from nobody, leaves as zeros, and changes nothing here.
    """
    before = _view(common, slot)
    try:
        trained = algorithm.local_update.train(problem, before, slot.key)
    except Unfilled as unfilled:
        raise InputError(f"the local update {unfilled}") from None
    after = before._replace(
        local=trained.variables, optimizer=trained.optimizer, metrics=trained.metrics, num_steps=trained.num_steps
    )

    shared, personal = _split(trained.variables, common[0].shared)
    reports = _measured("report", algorithm.reports, problem, after)
    num_examples = jnp.asarray(slot.rows[0].count, float)
    upload = Upload(tree.subtract(shared, common[0].shared), reports, num_examples, trained.num_steps)
    memory = _measured("memory", {name: kept.update for name, kept in algorithm.memory.items()}, problem, after)
    state = ClientState(personal, memory, slot.state.rounds + 1)

    has_examples = slot.is_here & (slot.rows[0].count > 0)
    is_finite = tree.is_finite((upload, state, trained.metrics))
    is_present = has_examples & is_finite
    upload = tree.where(is_present, upload, tree.zeros_like(upload))
    weigh = algorithm.aggregator.weigh
    weighted = tree.scale(weigh(upload), upload.update) if weigh else {}
    outcome = Outcome(
        tree.where(is_present, state, slot.state),
        upload,
        jnp.where(is_present, trained.metrics["loss"], 0),
        is_present,
        has_examples & ~is_finite,
    )
    return outcome, weighted


def _view(common: Common, slot: Slot) -> ClientView:
    received, examples = common
    start = tree.merge(received.shared, slot.state.personal)
    return ClientView(
        received=received._replace(published=Channel("published", received.published)),
        memory=Channel("memory", slot.state.memory),
        answers=Channel("answers", slot.answers),
        data=ClientData(examples, *slot.rows),
        start=start,
        local=start,
        optimizer=(),
        metrics=Channel("metrics", {}),
        num_steps=jnp.zeros((), float),
        client=slot.client,
    )


def _split(variables: Variables, shared: Variables) -> tuple[Variables, Variables]:
    is_shared = set(tree.paths(shared))
    return tree.partition(variables, lambda path: path not in is_shared)


def _measured(kind: str, measures: Mapping[str, Measure], problem: LocalProblem, view: ClientView) -> dict[str, Any]:
    values = {}
    for name, measure in measures.items():
        try:
            values[name] = measure(problem, view)
        except Unfilled as unfilled:
            raise InputError(f"{kind} '{name}' {unfilled}") from None
    return values

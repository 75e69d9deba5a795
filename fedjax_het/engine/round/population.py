"""TODO."""

from collections.abc import Callable

import jax

from fedjax_het import tree
from fedjax_het.engine.round.client_step import Cohort
from fedjax_het.types import Array, ClientState, PyTree, State


def gather_cohort(clients: ClientState, slots: Array, is_everyone: bool) -> ClientState:
    """The rows of the clients in these slots; where they are everyone in their order, nothing has to move."""
    is_there = is_everyone and clients.rounds.shape == slots.shape
    return clients if is_there else tree.take(clients, slots)


def scatter_cohort(clients: ClientState, cohort: Array, rows: ClientState, is_everyone: bool) -> ClientState:
    """The client states with these rows, [cohort] or more, in the cohort's places."""
    is_there = is_everyone and clients.rounds.shape == cohort.shape
    rows = jax.tree.map(lambda x: x[: len(cohort)], rows)
    return rows if is_there else tree.put(clients, cohort, rows)


def with_population(train: Callable, is_everyone: bool) -> Callable:
    """A round of a cohort, (state, cohort, ...) -> (state, metrics, ...), as one that takes and gives everybody."""

    def with_everyone(state: State, cohort: Cohort, *arguments: PyTree) -> tuple:
        gathered = state._replace(clients=gather_cohort(state.clients, cohort.ids, is_everyone))
        after, metrics, *messages = train(gathered, cohort, *arguments)
        population = scatter_cohort(state.clients, metrics.cohort, after.clients, is_everyone)
        return after._replace(clients=population), metrics, *messages

    return with_everyone

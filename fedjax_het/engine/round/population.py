"""Gathering of a cohort's client states from those of all clients, and scattering back."""

from collections.abc import Callable

from fedjax_het import tree
from fedjax_het.engine.parallel.layout import Layout
from fedjax_het.engine.round.client_step import Cohort
from fedjax_het.types import Array, ClientState, HostArray, PyTree, State


def gather_cohort(clients: ClientState, slots: HostArray, is_everyone: bool, layout: Layout) -> ClientState:
    """The states of the clients in these slots; those of all rows in their order are not copied."""
    is_whole = is_everyone and clients.rounds.shape == slots.shape
    return clients if is_whole else layout.take(clients, slots)


def scatter_cohort(clients: ClientState, cohort: Array, rows: ClientState, is_everyone: bool) -> ClientState:
    """The client states with those of the cohort replaced by `rows`, [cohort] or more."""
    is_whole = is_everyone and clients.rounds.shape == cohort.shape
    rows = tree.take(rows, slice(len(cohort)))
    return rows if is_whole else tree.put(clients, cohort, rows)


def with_population(train: Callable, is_everyone: bool, layout: Layout) -> Callable:
    """Turn a round of a cohort into one whose state has all clients.

    Args:
        train: (state with the cohort's clients, cohort, ...) -> (the same state after the round, metrics, ...).
        is_everyone: Whether the cohort is all clients in their order.
        layout: The layout of the client axis.

    Returns:
        A function with the same arguments and results but for the clients in the state.
    """

    def train_population(state: State, cohort: Cohort, *arguments: PyTree) -> tuple:
        gathered = state._replace(clients=gather_cohort(state.clients, cohort.ids, is_everyone, layout))
        after, metrics, *messages = train(gathered, cohort, *arguments)
        population = scatter_cohort(state.clients, metrics.cohort, after.clients, is_everyone)
        return after._replace(clients=population), metrics, *messages

    return train_population

"""Gathering and scattering of a cohort's client states."""

from collections.abc import Callable

from fedjax_het import tree
from fedjax_het.engine.parallel.layout import Layout
from fedjax_het.engine.round.client_step import Cohort
from fedjax_het.types import Array, ClientState, HostArray, PyTree, State


def gather_cohort(clients: ClientState, slots: HostArray, is_everyone: bool, layout: Layout) -> ClientState:
    """The states of the clients in these slots; if these are all rows in order, nothing is copied."""
    is_whole = is_everyone and clients.rounds.shape == slots.shape
    return clients if is_whole else layout.take(clients, slots)


def scatter_cohort(clients: ClientState, cohort: Array, rows: ClientState, is_everyone: bool) -> ClientState:
    """Replace the states of the cohort by `rows`, [cohort] or more."""
    is_whole = is_everyone and clients.rounds.shape == cohort.shape
    rows = tree.take(rows, slice(len(cohort)))
    return rows if is_whole else tree.put(clients, cohort, rows)


def with_population(train: Callable, is_everyone: bool, layout: Layout) -> Callable:
    """Turn a round of a cohort into a round whose state contains all clients.

    Args:
        train: (state with the cohort's clients, cohort, ...) -> (the same state after the round, metrics, ...).
        is_everyone: Whether the cohort is all clients in order.
        layout: The layout of the client axis.

    Returns:
        A function with the same arguments and results except for the clients in the state.
    """

    def train_population(state: State, cohort: Cohort, *arguments: PyTree) -> tuple:
        gathered = state._replace(clients=gather_cohort(state.clients, cohort.ids, is_everyone, layout))
        after, metrics, *messages = train(gathered, cohort, *arguments)
        population = scatter_cohort(state.clients, metrics.cohort, after.clients, is_everyone)
        return after._replace(clients=population), metrics, *messages

    return train_population

"""Where a run's arrays live between rounds: client states cut along the client axis, one part a device; all else whole
on every device.

The parts are equal: behind the last client lie rows that no cohort draws. A round's cohort is gathered and put back by
collectives that XLA makes of its indexing, so that what moves is the cohort's states, not the population's.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from fedjax_het import tree
from fedjax_het.engine.client_side import Cohort
from fedjax_het.engine.layout import Layout
from fedjax_het.types import Array, ClientData, ClientState, Key, PyTree, State

Init = Callable[[Key, ClientData], State]


def init(of_round: Init, layout: Layout) -> Init:
    """A round's `init` with the rows that lie at rest. All clients start alike, and so do the rows behind them."""

    def start(key: Key, data: ClientData) -> State:
        state = of_round(key, data)
        num_rows = layout.at_rest(state.clients.rounds.shape[0])
        return state._replace(
            clients=jax.tree.map(lambda x: jnp.broadcast_to(x, (num_rows, *x.shape)), tree.take(state.clients, 0))
        )

    return start


def of_state(layout: Layout, has_seeds: bool = False) -> State | None:
    """Shardings for a State, one for a part; None without a mesh. has_seeds: its leaves are [seeds, clients, ...]."""
    if not layout.mesh:
        return None
    return State(layout.sharding, layout.by_client(axis=int(has_seeds)), layout.sharding)


def of_cohort(clients: ClientState, slots: Array, is_everyone: bool) -> ClientState:
    """The rows of the clients in these slots; where they are everyone in their order, nothing has to move."""
    is_there = is_everyone and clients.rounds.shape == slots.shape
    return clients if is_there else tree.take(clients, slots)


def put_back(clients: ClientState, cohort: Array, rows: ClientState, is_everyone: bool) -> ClientState:
    """The client states with these rows, [cohort] or more, in the cohort's places."""
    is_there = is_everyone and clients.rounds.shape == cohort.shape
    rows = jax.tree.map(lambda x: x[: len(cohort)], rows)
    return rows if is_there else tree.put(clients, cohort, rows)


def among_all(train: Callable, is_everyone: bool) -> Callable:
    """A round of a cohort, (state, cohort, ...) -> (state, metrics, ...), as one that takes and gives everybody."""

    def with_everyone(state: State, cohort: Cohort, *arguments: PyTree) -> tuple:
        taken = state._replace(clients=of_cohort(state.clients, cohort.ids, is_everyone))
        after, metrics, *said = train(taken, cohort, *arguments)
        everyones = put_back(state.clients, metrics.cohort, after.clients, is_everyone)
        return after._replace(clients=everyones), metrics, *said

    return with_everyone


def described(shapes: State, layout: Layout, has_seeds: bool = False) -> State:
    """The shapes with their shardings, to compile for."""
    if not layout.mesh:
        return shapes
    return State(*(_with(part, where) for part, where in zip(shapes, of_state(layout, has_seeds), strict=True)))


def _with(shapes: PyTree, where: jax.sharding.Sharding) -> PyTree:
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=where), shapes)

"""Where a run's arrays live between rounds: client states cut along the client axis, one part a device; all else whole
on every device.

The parts are equal: behind the last client lie rows that no cohort draws. A round's cohort is gathered and put back by
collectives that XLA makes of its indexing, so that what moves is the cohort's states, not the population's.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from fedjax_het import tree
from fedjax_het.engine.parallel.layout import Layout
from fedjax_het.types import ClientData, Key, PyTree, State

Init = Callable[[Key, ClientData], State]


def initialize_with_padding(of_round: Init, layout: Layout) -> Init:
    """A round's `init` with the rows that lie at rest. All clients start alike, and so do the rows behind them."""

    def start(key: Key, data: ClientData) -> State:
        state = of_round(key, data)
        num_rows = layout.count_client_rows(state.clients.rounds.shape[0])
        return state._replace(
            clients=jax.tree.map(lambda x: jnp.broadcast_to(x, (num_rows, *x.shape)), tree.take(state.clients, 0))
        )

    return start


def state_shardings(layout: Layout, has_seeds: bool = False) -> State | None:
    """Shardings for a State, one for a part; None without a mesh. has_seeds: its leaves are [seeds, clients, ...]."""
    if not layout.mesh:
        return None
    return State(layout.sharding, layout.client_sharding(axis=int(has_seeds)), layout.sharding)


def with_shardings(shapes: State, layout: Layout, has_seeds: bool = False) -> State:
    """The shapes with their shardings, to compile for."""
    if not layout.mesh:
        return shapes
    return State(
        *(_with_sharding(part, where) for part, where in zip(shapes, state_shardings(layout, has_seeds), strict=True))
    )


def _with_sharding(shapes: PyTree, where: jax.sharding.Sharding) -> PyTree:
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=where), shapes)

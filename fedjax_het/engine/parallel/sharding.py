"""Sharding of the run state between rounds: client states along the client axis, all else replicated.

All devices have the same number of rows: padding rows, which no cohort draws, follow the last client. XLA turns the
indexing of a cohort into collectives, which move the states of the cohort, not of the population.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from fedjax_het import tree
from fedjax_het.engine.parallel.layout import Layout
from fedjax_het.types import ClientData, Key, PyTree, State

Init = Callable[[Key, ClientData], State]


def initialize_with_padding(init: Init, layout: Layout) -> Init:
    """A round's `init` with padding rows behind the clients; all rows have the same initial state."""

    def initialize(key: Key, data: ClientData) -> State:
        state = init(key, data)
        num_rows = layout.count_client_rows(state.clients.rounds.shape[0])
        return state._replace(
            clients=jax.tree.map(lambda x: jnp.broadcast_to(x, (num_rows, *x.shape)), tree.take(state.clients, 0))
        )

    return initialize


def state_shardings(layout: Layout, has_seeds: bool = False) -> PyTree:
    """The shardings of a State, one per part; None without a mesh.

    Args:
        layout: The layout of the devices.
        has_seeds: Whether leaves are [seeds, clients, ...] instead of [clients, ...].
    """
    if not layout.mesh:
        return None
    return State._make([layout.sharding, layout.client_sharding(axis=int(has_seeds)), layout.sharding])


def with_shardings(shapes: State, layout: Layout, has_seeds: bool = False) -> State:
    """Add the shardings of a State to its shapes; arguments as for `state_shardings`."""
    if not layout.mesh:
        return shapes
    pairs = zip(shapes, state_shardings(layout, has_seeds), strict=True)
    return State._make(
        jax.tree.map(lambda x, sharding=sharding: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding), part)
        for part, sharding in pairs
    )

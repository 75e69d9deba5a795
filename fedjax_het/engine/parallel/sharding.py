"""Sharding of the run state between rounds: client states along the client axis, all else replicated.

All devices have the same number of rows; padding rows, which are never sampled, follow the last client. `Layout.take`
moves the states of a cohort to the devices of its slots; XLA turns their update into a collective over the cohort.
"""

import jax

from fedjax_het.engine.parallel.layout import Layout
from fedjax_het.types import PyTree, State


def state_shardings(layout: Layout) -> PyTree:
    """The shardings of a State with leaves [seeds, ...], one per part; None without a mesh."""
    return State._make([layout.sharding, layout.client_sharding, layout.sharding]) if layout.mesh else None


def with_shardings(shapes: State, layout: Layout) -> State:
    """Add the shardings of a State to its shapes."""
    if not layout.mesh:
        return shapes
    pairs = zip(shapes, state_shardings(layout), strict=True)
    return State._make(
        jax.tree.map(lambda x, sharding=sharding: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding), part)
        for part, sharding in pairs
    )

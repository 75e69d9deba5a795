"""`tree.Sums` of a stack that devices share, each with all columns of its own clients. For use inside `shard_map`."""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from fedjax_het import tree
from fedjax_het.types import Array, PyTree

_TRADED = 1 << 20  # entries that a device trades at a time


def across_devices(axis: str, num_devices: int, num_clients: int) -> tree.Sums:
    """The stack holds `num_clients`, filled up so that every device has as many.

    For sums over columns a device takes a part of the columns of all clients: they trade, a block at a time, so that
    none ever holds more than its clients and a block, and then add up what each found.
    """

    def over_columns(function: Callable[[Array], PyTree], stack: PyTree) -> PyTree:
        def traded(block: Array) -> PyTree:
            block = jnp.pad(block, ((0, 0), (0, -block.shape[1] % num_devices)))
            return function(jax.lax.all_to_all(block, axis, 1, 0, tiled=True)[:num_clients])

        # with fewer columns than clients, say, adding up sums of m x m would take longer than finding them
        part = max(4 * num_clients, _TRADED // num_clients)
        by_blocks = lambda rows: tree.sum_over_blocks(traded, rows, part * num_devices)  # noqa: E731
        return jax.lax.psum(tree.sum_over_leaves(by_blocks, stack), axis)

    def over_clients(function: Callable[[Array, PyTree], PyTree], factors: Array, stack: PyTree) -> PyTree:
        count = jax.tree.leaves(stack)[0].shape[0]
        factors = filled(factors, count * num_devices)
        own = jax.lax.dynamic_slice_in_dim(factors, jax.lax.axis_index(axis) * count, count)
        return jax.lax.psum(function(own, stack), axis)

    def once(function: Callable[..., PyTree], *arrays: Array) -> PyTree:
        nothing = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), jax.eval_shape(function, *arrays))
        found = jax.lax.cond(jax.lax.axis_index(axis) == 0, function, lambda *_: nothing, *arrays)
        return jax.lax.psum(found, axis)

    return tree.Sums(over_columns, over_clients, once)


def filled(x: Array, count: int) -> Array:
    """With rows of zeros up to `count`."""
    return jnp.pad(x, [(0, count - x.shape[0])] + [(0, 0)] * (x.ndim - 1))

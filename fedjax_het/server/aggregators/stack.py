"""What is read off a stack of updates, leaves [m, ...]: inner products, and the sum of some share of each.

A stack in bfloat16 holds the bits, as uint16: inside a loop on a CPU, XLA widens a whole array of bfloat16 to float32.
"""

import jax
import jax.numpy as jnp

from fedjax_het import tree
from fedjax_het.server.native import gram as native
from fedjax_het.types import Array, PyTree

_CACHED = 1 << 19  # entries converted at a time on a CPU: they stay in its cache
_LAUNCHED = 1 << 24  # elsewhere: few enough launches


def packed(update: PyTree) -> PyTree:
    """Every floating leaf in bfloat16, as its bits."""

    largest = float(jnp.finfo(jnp.bfloat16).max)

    def pack(x: Array) -> Array:
        if not jnp.issubdtype(x.dtype, jnp.floating):
            return x
        return jax.lax.bitcast_convert_type(jnp.clip(x, -largest, largest).astype(jnp.bfloat16), jnp.uint16)

    return jax.tree.map(pack, update)


def unpacked(stack: PyTree) -> PyTree:
    """The same in float32; leaves that are not packed stay as they are."""
    return jax.tree.map(_widened, stack)


def gram_matrix(stack: PyTree) -> Array:
    """K_ij = <u_i, u_j> over all leaves [m, ...], in float64 (inside `in_double`)."""
    return tree.sum_over_leaves(inner_products, stack)


def inner_products(rows: Array) -> Array:
    """<x_i, x_j>, [m, n] -> [m, m] in float64 (inside `in_double`), without a second copy of the rows.

    Products of float32 rows are added in float64; those of packed rows in float32 over a block of columns, and in
    float64 over blocks. On a CPU a kernel of ours does it, where it can be had (server/native).
    """
    if rows.size and rows.dtype in (jnp.float32, jnp.uint16) and not native.why_not():
        return native.gram(rows)
    return tree.sum_over_blocks(_product, rows, _block(rows))


def _product(rows: Array) -> Array:
    rows = _widened(rows) if rows.dtype == jnp.uint16 else rows.astype(float)
    return jnp.matmul(rows, rows.T, precision=jax.lax.Precision.HIGHEST).astype(float)


def combination(factors: Array, stack: PyTree) -> PyTree:
    """sum_i c_i u_i over leaves [m, ...], of packed leaves in float32, without a second copy of the stack."""
    return jax.tree.map(lambda leaf: _combined(factors, leaf), stack)


def _combined(factors: Array, leaf: Array) -> Array:
    if leaf.dtype != jnp.uint16:
        return tree.weighted_sum(leaf, factors)
    add = lambda i, total: total + factors[i].astype(total.dtype) * _widened(leaf[i])  # noqa: E731
    return jax.lax.fori_loop(0, leaf.shape[0], add, jnp.zeros(leaf.shape[1:], jnp.float32))


def _block(rows: Array) -> int:
    entries = _CACHED if jax.default_backend() == "cpu" else _LAUNCHED
    return max(1, entries // rows.shape[0])


def _widened(x: Array) -> Array:
    return jax.lax.bitcast_convert_type(x.astype(jnp.uint32) << 16, jnp.float32) if x.dtype == jnp.uint16 else x

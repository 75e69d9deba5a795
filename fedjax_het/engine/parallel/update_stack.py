"""Stacks of the updates of a cohort: on one device or spread over many, in float32 or bfloat16.

The server reads them as `types.UpdateStack`. The bits of bfloat16 are held as uint16: inside a loop on a CPU, XLA
widens a whole array of bfloat16 to float32.
"""

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from fedjax_het import tree
from fedjax_het._internal import kernels
from fedjax_het._internal.float64 import require_float64
from fedjax_het.engine.parallel.layout import AXIS, Layout, vmapped
from fedjax_het.types import Array, PyTree, Upload

_CACHED = 1 << 19  # entries of a stack that are converted at a time on a CPU: they stay in its cache
_LAUNCHED = 1 << 24  # elsewhere: few enough kernel launches
_TRADED = 1 << 20  # entries that a device exchanges with the others at a time
_KERNEL = Path(__file__).with_name("gram.cc")
_TARGETS = {"float32": "fedjax_het_gram_float32", "bfloat16": "fedjax_het_gram_bfloat16"}


@dataclass(frozen=True)
class StackedUpdates:
    """An `UpdateStack` in memory. Each device of the layout's mesh holds the updates of its own clients.

    Args:
        stack: leaves [cohort, ...], floats or the bits of bfloat16; zeros for absent clients.
        layout: where the stack lies.
        sums: the sums made while clients trained, in the order in which they will be asked for; None where none were.
    """

    stack: PyTree
    layout: Layout = vmapped
    sums: Iterator[tuple[Array, PyTree]] | None = None

    def weighted_sum(self, weights: Array, per_client: Callable[[Upload], Array] | None = None) -> PyTree:
        if per_client is None or self.sums is None:
            return self.combine(weights)
        total, summed = next(self.sums)
        return tree.scale(jnp.sum(weights) / jnp.where(total != 0, total, 1), summed)

    def gram(self) -> Array:
        require_float64()
        if not self.layout.mesh:
            return tree.sum_over_leaves(inner_products, self.stack)
        num_clients = jax.tree.leaves(self.stack)[0].shape[0]
        return self._on_each_device(functools.partial(_gram_across_devices, num_clients, self.layout.num_devices))

    def products(self, reference: PyTree) -> Array:
        require_float64()
        if not self.layout.mesh:
            return _products(self.stack, reference)
        own = lambda stack, reference: jax.lax.all_gather(_products(stack, reference), AXIS, tiled=True)  # noqa: E731
        return self._on_each_device(own, reference)[: jax.tree.leaves(self.stack)[0].shape[0]]

    def combine(self, coefficients: Array) -> PyTree:
        coefficients = jnp.asarray(coefficients)
        if not self.layout.mesh:
            return combination(coefficients, self.stack)
        return self._on_each_device(_combination_across_devices, self._padded(coefficients))

    def tensors(self) -> PyTree:
        return unpack(self.stack)

    def select(self, is_chosen: Callable[[str], bool]) -> "StackedUpdates":
        return replace(self, stack=tree.partition(self.stack, is_chosen)[1])

    def by_tensor(self) -> PyTree:
        return jax.tree.map(lambda leaf: replace(self, stack=leaf), self.stack)

    def astype(self, dtype: str) -> "StackedUpdates":
        return replace(self, stack=pack(self.stack)) if dtype == "bfloat16" else self

    def _padded(self, rows: Array) -> Array:
        """With rows of zeros, as many for every device."""
        missing = self.layout.round_up(rows.shape[0]) - rows.shape[0]
        return jnp.pad(rows, [(0, missing)] + [(0, 0)] * (rows.ndim - 1))

    def _on_each_device(self, function: Callable[..., PyTree], *others: Array) -> PyTree:
        """function(the device's part of the stack, *others), the same result on every device."""
        if not jax.tree.leaves(self.stack):
            return self.stack
        specs = (P(AXIS), *(P() for _ in others))
        body = jax.shard_map(function, mesh=self.layout.mesh, in_specs=specs, out_specs=P(), check_vma=False)
        return body(jax.tree.map(self._padded, self.stack), *others)


def _gram_across_devices(num_clients: int, num_devices: int, stack: PyTree) -> Array:
    """Every device takes a part of the columns of all clients.

    They exchange blocks, so that none ever holds more than its own clients and a block, and then add up.
    """

    def exchange(block: Array) -> Array:
        block = jnp.pad(block, ((0, 0), (0, -block.shape[1] % num_devices)))
        return inner_products(jax.lax.all_to_all(block, AXIS, 1, 0, tiled=True)[:num_clients])

    # with fewer columns than clients, adding up sums of m x m would take longer than finding them
    columns = max(4 * num_clients, _TRADED // num_clients)
    by_blocks = lambda rows: tree.sum_over_blocks(exchange, rows, columns * num_devices)  # noqa: E731
    return jax.lax.psum(tree.sum_over_leaves(by_blocks, stack), AXIS)


def _products(stack: PyTree, reference: PyTree) -> Array:
    """<u_i, v>; a matrix product would copy the stack to float64."""
    pairs = zip(jax.tree.leaves(unpack(stack)), jax.tree.leaves(reference), strict=True)
    rows = ((u.reshape(u.shape[0], -1).astype(float), v.ravel().astype(float)) for u, v in pairs)
    return sum(jnp.sum(u * v, axis=1) for u, v in rows)


def _combination_across_devices(stack: PyTree, coefficients: Array) -> PyTree:
    """Coefficients are whole on every device: cut along the clients, what they are computed from would be cut, too."""
    count = jax.tree.leaves(stack)[0].shape[0]
    own = jax.lax.dynamic_slice_in_dim(coefficients, jax.lax.axis_index(AXIS) * count, count)
    return jax.lax.psum(combination(own, stack), AXIS)


# ---- arithmetic on stacks --------------------------------------------------------------------------------------------
def pack(update: PyTree) -> PyTree:
    """Every floating leaf in bfloat16, as its bits; what is finite stays finite."""
    largest = float(jnp.finfo(jnp.bfloat16).max)

    def bits(x: Array) -> Array:
        if not jnp.issubdtype(x.dtype, jnp.floating):
            return x
        return jax.lax.bitcast_convert_type(jnp.clip(x, -largest, largest).astype(jnp.bfloat16), jnp.uint16)

    return jax.tree.map(bits, update)


def unpack(stack: PyTree) -> PyTree:
    """The same in float32; leaves that are not packed stay as they are."""
    return jax.tree.map(_widen, stack)


def inner_products(rows: Array) -> Array:
    """<x_i, x_j>, [m, n] -> [m, m] in float64, without a second copy of the rows.

    Products of float32 rows are added in float64; those of packed rows in float32 over a block of columns, and in
    float64 over blocks. On a CPU a kernel of ours does it (gram.cc), where it can be had.
    """
    if rows.size and rows.dtype in (jnp.float32, jnp.uint16) and not explain_missing_kernel():
        return compute_gram_by_kernel(rows)
    entries = _CACHED if jax.default_backend() == "cpu" else _LAUNCHED
    return tree.sum_over_blocks(_products_of_block, rows, max(1, entries // rows.shape[0]))


def _products_of_block(rows: Array) -> Array:
    rows = _widen(rows) if rows.dtype == jnp.uint16 else rows.astype(float)
    return jnp.matmul(rows, rows.T, precision=jax.lax.Precision.HIGHEST).astype(float)


@functools.cache
def explain_missing_kernel() -> str | None:
    """None where the kernel of inner products can be used, else why not. The first call may compile it."""
    if jax.default_backend() != "cpu":
        return f"it is for CPUs, and this is a {jax.default_backend()}"
    return kernels.register(_KERNEL, _TARGETS)


def compute_gram_by_kernel(rows: Array) -> Array:
    """<x_i, x_j>, [..., m, n] -> [..., m, m] in float64; rows in float32, or bfloat16 as its bits."""
    target = _TARGETS["float32" if rows.dtype == jnp.float32 else "bfloat16"]
    out = jax.ShapeDtypeStruct((*rows.shape[:-1], rows.shape[-2]), jnp.float64)
    return jax.ffi.ffi_call(target, out, vmap_method="broadcast_all")(rows)


def combination(coefficients: Array, stack: PyTree) -> PyTree:
    """sum_i c_i u_i over leaves [m, ...], of packed leaves in float32, without a second copy of the stack."""

    def combine(leaf: Array) -> Array:
        if leaf.dtype != jnp.uint16:
            return tree.weighted_sum(leaf, coefficients)
        add = lambda i, total: total + coefficients[i].astype(total.dtype) * _widen(leaf[i])  # noqa: E731
        return jax.lax.fori_loop(0, leaf.shape[0], add, jnp.zeros(leaf.shape[1:], jnp.float32))

    return jax.tree.map(combine, stack)


def _widen(x: Array) -> Array:
    return jax.lax.bitcast_convert_type(x.astype(jnp.uint32) << 16, jnp.float32) if x.dtype == jnp.uint16 else x

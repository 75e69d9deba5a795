"""Stacks of the updates of a cohort: on one device or sharded over several, in float32 or bfloat16.

The server reads them as `types.UpdateStack`. bfloat16 is stored as its bits in uint16: inside a loop on a CPU, XLA
would widen a whole array of bfloat16 to float32.
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
from fedjax_het._internal.target_platform import target_platform
from fedjax_het.engine.parallel.digit_products import block_size, multiply_by_digits
from fedjax_het.engine.parallel.layout import AXIS, Layout, vmapped
from fedjax_het.types import Array, PyTree, Upload

_CPU_BLOCK = 1 << 19  # entries of a stack that a CPU converts at a time: they fit in its cache
_ACCELERATOR_BLOCK = 1 << 24  # the same on accelerators: large, for few kernel launches
_JOINED_LEAF = 1 << 22  # entries of the leaves that are copied into one
_FEW_ENTRIES = 1 << 17  # of which products in emulated float64 take less time to compile than those of digits
_EXCHANGE_BLOCK = 1 << 20  # entries that a device exchanges with the others at a time
_KERNEL = Path(__file__).with_name("gram.cc")
_TARGETS = {"float32": "fedjax_het_gram_float32", "bfloat16": "fedjax_het_gram_bfloat16"}


@dataclass(frozen=True)
class StackedUpdates:
    """An `UpdateStack` in memory. Each device of the layout's mesh holds the updates of its own clients.

    Args:
        stack: Leaves [cohort, ...], floats or the bits of bfloat16; zeros for absent clients.
        layout: The layout of the stack on devices.
        sums: The sums that were streamed while clients trained, in the order of the calls; None where there are none.
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
            return tree.sum_over_leaves(inner_products, _join_small_leaves(self.stack))
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
        """Add rows of zeros, so that all devices have the same number."""
        missing = self.layout.round_up(rows.shape[0]) - rows.shape[0]
        return jnp.pad(rows, [(0, missing)] + [(0, 0)] * (rows.ndim - 1))

    def _on_each_device(self, function: Callable[..., PyTree], *others: Array) -> PyTree:
        """Run function(the device's part of the stack, *others), whose result is the same on every device."""
        if not jax.tree.leaves(self.stack):
            return self.stack
        specs = (P(AXIS), *(P() for _ in others))
        body = jax.shard_map(function, mesh=self.layout.mesh, in_specs=specs, out_specs=P(), check_vma=False)
        return body(jax.tree.map(self._padded, self.stack), *others)


def _gram_across_devices(num_clients: int, num_devices: int, stack: PyTree) -> Array:
    """The Gram matrix of a sharded stack.

    Each device computes the products of all clients over its part of the columns, which it receives in blocks, so that
    none holds more than its own clients and a block; the results are summed.
    """

    def exchange(block: Array) -> Array:
        block = jnp.pad(block, ((0, 0), (0, -block.shape[1] % num_devices)))
        return inner_products(jax.lax.all_to_all(block, AXIS, 1, 0, tiled=True)[:num_clients])

    # With fewer columns than clients, summing m x m matrices would take longer than computing them.
    columns = max(4 * num_clients, _EXCHANGE_BLOCK // num_clients)
    by_blocks = lambda rows: tree.sum_over_blocks(exchange, columns * num_devices, rows)  # noqa: E731
    return jax.lax.psum(tree.sum_over_leaves(by_blocks, _join_small_leaves(stack)), AXIS)


def _join_small_leaves(stack: PyTree) -> PyTree:
    """Join the float32 leaves of up to `_JOINED_LEAF` entries for TPUs, where the products of each leaf take seconds to
    compile."""
    if target_platform() != "tpu":
        return stack
    small, large = [], []
    for rows in (leaf.reshape(leaf.shape[0], -1) for leaf in jax.tree.leaves(stack)):
        (small if rows.dtype == jnp.float32 and rows.size <= _JOINED_LEAF else large).append(rows)
    return [*large, jnp.concatenate(small, axis=1)] if small else large


def _products(stack: PyTree, reference: PyTree) -> Array:
    """The inner products <u_i, v>, without a second copy of the stack."""
    num_clients = jax.tree.leaves(stack)[0].shape[0]
    pairs = zip(jax.tree.leaves(unpack(stack)), jax.tree.leaves(reference), strict=True)
    products = (_products_of_rows(u.reshape(num_clients, -1), v.reshape(1, -1)) for u, v in pairs)
    return sum(products, jnp.zeros(num_clients, float))


def _products_of_rows(rows: Array, other: Array) -> Array:
    if _takes_digits(rows) and other.dtype == rows.dtype:
        return tree.sum_over_blocks(multiply_by_digits, block_size(len(rows), 1), rows, other)[:, 0]
    return jnp.sum(rows.astype(float) * other.astype(float), axis=1)  # a matrix product would copy the stack to float64


def _combination_across_devices(stack: PyTree, coefficients: Array) -> PyTree:
    """Combine a sharded stack. The coefficients are replicated: sharding them would shard their inputs, too."""
    count = jax.tree.leaves(stack)[0].shape[0]
    own = jax.lax.dynamic_slice_in_dim(coefficients, jax.lax.axis_index(AXIS) * count, count)
    return jax.lax.psum(combination(own, stack), AXIS)


# ---- arithmetic on stacks --------------------------------------------------------------------------------------------
def pack(update: PyTree) -> PyTree:
    """Convert floating leaves to bfloat16, as its bits in uint16; finite numbers stay finite."""
    largest = float(jnp.finfo(jnp.bfloat16).max)

    def bits(x: Array) -> Array:
        if not jnp.issubdtype(x.dtype, jnp.floating):
            return x
        return jax.lax.bitcast_convert_type(jnp.clip(x, -largest, largest).astype(jnp.bfloat16), jnp.uint16)

    return jax.tree.map(bits, update)


def unpack(stack: PyTree) -> PyTree:
    """Convert packed leaves to float32; the others stay as they are."""
    return jax.tree.map(_widen, stack)


def inner_products(rows: Array) -> Array:
    """The Gram matrix <x_i, x_j> in float64, [m, n] -> [m, m], without a second copy of the rows.

    Products of float32 rows are accumulated in float64; on TPUs those of many columns are exact by digits. Products of
    packed rows are accumulated in float32 over a block of columns, and in float64 over blocks. On CPUs the native
    kernel in gram.cc computes them, where it is available.
    """
    if rows.size and rows.dtype in (jnp.float32, jnp.uint16) and not explain_missing_kernel():
        return compute_gram_by_kernel(rows)
    if _takes_digits(rows):
        return tree.sum_over_blocks(lambda x: multiply_by_digits(x, x), block_size(len(rows), len(rows)), rows)
    entries = _CPU_BLOCK if target_platform() == "cpu" else _ACCELERATOR_BLOCK
    return tree.sum_over_blocks(_products_of_block, max(1, entries // rows.shape[0]), rows)


def _takes_digits(rows: Array) -> bool:
    return target_platform() == "tpu" and rows.dtype == jnp.float32 and rows.size > _FEW_ENTRIES


def _products_of_block(rows: Array) -> Array:
    rows = _widen(rows) if rows.dtype == jnp.uint16 else rows.astype(float)
    return jnp.matmul(rows, rows.T, precision=jax.lax.Precision.HIGHEST).astype(float)


def explain_missing_kernel() -> str | None:
    """The reason why the native kernel is not available; None if it is. The first call may compile it."""
    if target_platform() != "cpu":
        return f"it is for CPUs, and this is a {target_platform()}"
    return _register_kernel()


_register_kernel = functools.cache(functools.partial(kernels.register, _KERNEL, _TARGETS))


def compute_gram_by_kernel(rows: Array) -> Array:
    """The Gram matrix in float64 by the native kernel, [..., m, n] -> [..., m, m]; rows as in `StackedUpdates`."""
    target = _TARGETS["float32" if rows.dtype == jnp.float32 else "bfloat16"]
    out = jax.ShapeDtypeStruct((*rows.shape[:-1], rows.shape[-2]), jnp.float64)
    return jax.ffi.ffi_call(target, out, vmap_method="broadcast_all")(rows)


def combination(coefficients: Array, stack: PyTree) -> PyTree:
    """sum_i c_i u_i over leaves [m, ...], in float32 for packed leaves, without a second copy of the stack."""

    def combine(leaf: Array) -> Array:
        if leaf.dtype != jnp.uint16:
            return tree.weighted_sum(leaf, coefficients)
        add = lambda i, total: total + coefficients[i].astype(total.dtype) * _widen(leaf[i])  # noqa: E731
        return jax.lax.fori_loop(0, leaf.shape[0], add, jnp.zeros(leaf.shape[1:], jnp.float32))

    return jax.tree.map(combine, stack)


def _widen(x: Array) -> Array:
    return jax.lax.bitcast_convert_type(x.astype(jnp.uint32) << 16, jnp.float32) if x.dtype == jnp.uint16 else x

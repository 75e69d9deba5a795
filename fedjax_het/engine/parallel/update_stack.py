"""Stacks of the updates of a cohort, on a single device or sharded, in float32 or bfloat16.

The server reads them as `types.UpdateStack`. bfloat16 is stored as its bits in uint16, because inside loops on CPUs XLA
would widen whole bfloat16 arrays to float32.
"""

import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P

from fedjax_het import tree
from fedjax_het._internal import kernels
from fedjax_het._internal.float64 import is_float64_enabled
from fedjax_het._internal.target_platform import target_platform
from fedjax_het.engine.parallel.digit_products import EXACT_COLUMNS, block_size, multiply_by_digits
from fedjax_het.engine.parallel.layout import AXIS, Layout, vmapped
from fedjax_het.errors import InputError
from fedjax_het.types import Array, PyTree, Reads, WeightedSum

_CPU_BLOCK = 1 << 19  # stack entries converted at a time on CPUs, to fit in the cache
_ACCELERATOR_BLOCK = 1 << 24  # the same on accelerators; large, to launch few kernels
_JOINED_LEAF = 1 << 22  # maximum entries of leaves that are joined
_FEW_ENTRIES = 1 << 17  # below this, emulated float64 products compile faster than digit products
_EXCHANGE_BLOCK = 1 << 20  # entries that a device exchanges at a time


@dataclass(frozen=True)
class StackedUpdates:
    """An `UpdateStack` in memory. Each device of the layout's mesh stores the updates of its clients.

    Args:
        stack: Leaves [cohort, ...], floats or the bits of bfloat16; zeros for absent clients.
        layout: The layout of the stack on devices.
        reader: The name of the part that reads it, in messages. None: it may read everything.
        reads, declared: How the reader reads the stack, and the sums that it declares.
        sums: (sum of the weights, weighted sum) of the declared sums that were accumulated while clients trained.
        is_by_tensor: Whether products and combinations are computed for each leaf separately.
    """

    stack: PyTree
    layout: Layout = vmapped
    reader: str | None = None
    reads: Reads = "gram"
    declared: Sequence[WeightedSum] = ()
    sums: Mapping[WeightedSum, tuple[Array, PyTree]] = field(default_factory=dict)
    is_by_tensor: bool = False

    def weighted_sum(self, weights: Array, declared: WeightedSum) -> PyTree:
        if self.reader and declared not in self.declared:
            raise InputError(f"{self.reader} reads a weighted sum that it does not declare. Add it to sums=...")
        if declared not in self.sums:
            chosen = self if declared.is_chosen is None else self.select(declared.is_chosen)
            return replace(chosen, reader=None).combine(weights)
        total, summed = self.sums[declared]
        return tree.scale(jnp.sum(weights) / jnp.where(total != 0, total, 1), summed)

    def gram(self) -> Array:
        self._check_access("gram")
        if not self.layout.mesh:
            return _multiply_leaves(inner_products, self.is_by_tensor, self.stack)
        num_clients = jax.tree.leaves(self.stack)[0].shape[0]
        by_columns = functools.partial(_inner_products_across_devices, num_clients, self.layout.num_devices)
        own = lambda stack: jax.lax.psum(_multiply_leaves(by_columns, self.is_by_tensor, stack), AXIS)  # noqa: E731
        return self._on_each_device(own)

    def products(self, reference: PyTree) -> Array:
        self._check_access("gram")

        def own(stack: PyTree, reference: PyTree) -> Array:
            other = jax.tree.map(lambda leaf: leaf[None], reference)
            return _multiply_leaves(_products_of_rows, self.is_by_tensor, unpack(stack), other)

        def across_devices(stack: PyTree, reference: PyTree) -> Array:
            products = own(stack, reference)
            return jax.lax.all_gather(products, AXIS, axis=products.ndim - 1, tiled=True)

        if not self.layout.mesh:
            return own(self.stack, reference)
        return self._on_each_device(across_devices, reference)[..., : len(jax.tree.leaves(self.stack)[0])]

    def combine(self, coefficients: Array) -> PyTree:
        self._check_access("tensors")
        coefficients = jnp.asarray(coefficients)
        if not self.layout.mesh:
            return combination(coefficients, self.stack)
        padding = [(0, 0)] * (coefficients.ndim - 1) + [(0, self._count_padding(coefficients.shape[-1]))]
        return self._on_each_device(_combination_across_devices, jnp.pad(coefficients, padding))

    def tensors(self) -> PyTree:
        self._check_access("tensors")
        return unpack(self.stack)

    def select(self, is_chosen: Callable[[str], bool]) -> "StackedUpdates":
        return replace(self, stack=tree.partition(self.stack, is_chosen)[1])

    def by_tensor(self) -> "StackedUpdates":
        return replace(self, is_by_tensor=True)

    def _check_access(self, needed: Reads) -> None:
        if self.reader and self.reads not in (needed, "gram"):
            raise InputError(
                f"{self.reader} declares reads='{self.reads}', but reads more of the updates. Declare reads='{needed}'."
            )
        if needed == "gram" and not is_float64_enabled():
            raise InputError("inner products of updates need float64. Compute them in an aggregator with reads='gram'.")

    def _padded(self, rows: Array) -> Array:
        """Add rows of zeros, so all devices have the same number of rows."""
        return jnp.pad(rows, [(0, self._count_padding(rows.shape[0]))] + [(0, 0)] * (rows.ndim - 1))

    def _count_padding(self, num_rows: int) -> int:
        return self.layout.round_up(num_rows) - num_rows

    def _on_each_device(self, function: Callable[..., PyTree], *others: Array) -> PyTree:
        """Run function(the device's part of the stack, *others), whose result is equal on all devices."""
        if not jax.tree.leaves(self.stack):
            return self.stack
        specs = (P(AXIS), *(P() for _ in others))
        body = jax.shard_map(function, mesh=self.layout.mesh, in_specs=specs, out_specs=P(), check_vma=False)
        return body(jax.tree.map(self._padded, self.stack), *others)


def _multiply_leaves(multiply: Callable[..., Array], is_by_tensor: bool, *stacks: PyTree) -> Array:
    """The products of the leaves of stacks, each leaf as rows [any, columns]: their sum, or [leaves, ...].

    Small leaves are joined for TPUs, where the products of each leaf take seconds to compile.

    Args:
        multiply: (*rows) -> products; (*rows, groups, num_groups) -> the products of each group of columns.
        is_by_tensor: Whether products are computed for each leaf separately.
        stacks: Trees of the same structure.
    """
    leaves = [
        [leaf.reshape(len(leaf), -1) for leaf in group] for group in zip(*map(jax.tree.leaves, stacks), strict=True)
    ]
    small = [index for index, rows in enumerate(leaves) if _is_joined(rows)]
    large = [index for index in range(len(leaves)) if index not in small]
    products = [multiply(*leaves[index]) for index in large]
    if is_by_tensor:
        products = [product[None] for product in products]
    if small:
        joined, groups = _join([leaves[index] for index in small])
        products.append(multiply(*joined, groups, len(small)) if is_by_tensor else multiply(*joined))
    return jnp.concatenate(products)[np.argsort(large + small)] if is_by_tensor else sum(products[1:], products[0])


def _is_joined(rows: Sequence[Array]) -> bool:
    is_float32 = all(leaf.dtype == jnp.float32 for leaf in rows)
    return target_platform() == "tpu" and is_float32 and rows[0].size <= _JOINED_LEAF


def _join(leaves: Sequence[Sequence[Array]]) -> tuple[list[Array], Array]:
    """Join the columns of leaves (of each of several stacks), and the index of the leaf of each column, [1, columns].

    Each leaf starts at a multiple of `EXACT_COLUMNS`, after zero padding.
    """
    pad = lambda rows: jnp.pad(rows, ((0, 0), (0, -rows.shape[1] % EXACT_COLUMNS)))  # noqa: E731
    joined = [jnp.concatenate([pad(rows) for rows in group], axis=1) for group in zip(*leaves, strict=True)]
    leaf_index = np.repeat(np.arange(len(leaves)), [-(-rows[0].shape[1] // EXACT_COLUMNS) for rows in leaves])
    return joined, jnp.broadcast_to(leaf_index[:, None], (len(leaf_index), EXACT_COLUMNS)).reshape(1, -1)


def _inner_products_across_devices(
    num_clients: int, num_devices: int, rows: Array, groups: Array | None = None, num_groups: int = 0
) -> Array:
    """This device's contribution to the `inner_products` of rows sharded by clients, to be summed over devices.

    Each device computes the products of all clients over its part of the columns, which it receives in blocks, so no
    device stores more than its own clients and a block.
    """
    width = num_devices * (1 if groups is None else EXACT_COLUMNS)

    def exchange(block: Array, *groups: Array) -> Array:
        pad = lambda x: jnp.pad(x, ((0, 0), (0, -block.shape[1] % width)))  # noqa: E731
        part = jax.lax.all_to_all(pad(block), AXIS, 1, 0, tiled=True)[:num_clients]
        if not groups:
            return inner_products(part)
        first = jax.lax.axis_index(AXIS) * part.shape[1]
        own = jax.lax.dynamic_slice_in_dim(pad(groups[0]), first, part.shape[1], axis=1)
        return inner_products(part, own, num_groups)

    # With fewer columns than clients, summing m x m matrices takes longer than computing them.
    columns = max(4 * num_clients, _EXCHANGE_BLOCK // num_clients) * num_devices
    columns = -(-columns // width) * width
    return tree.sum_over_blocks(exchange, columns, *_with_groups(rows, groups=groups), multiple=width)


def _products_of_rows(rows: Array, other: Array, groups: Array | None = None, num_groups: int = 0) -> Array:
    """The inner products of rows with another, [1, columns]: [m], or of each group of columns, [groups, m]."""
    if groups is not None or (_takes_digits(rows) and other.dtype == rows.dtype):
        return _multiply_by_digits(rows, other, groups, num_groups)[..., 0]
    return jnp.sum(rows.astype(float) * other.astype(float), axis=1)  # a matrix product would copy the stack to float64


def _combination_across_devices(stack: PyTree, coefficients: Array) -> PyTree:
    """Combine a sharded stack. Coefficients are replicated, since sharding them would shard their inputs too."""
    count = jax.tree.leaves(stack)[0].shape[0]
    own = jax.lax.dynamic_slice_in_dim(coefficients, jax.lax.axis_index(AXIS) * count, count, axis=-1)
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
    """Convert packed leaves to float32; other leaves are unchanged."""
    return jax.tree.map(_widen, stack)


def inner_products(rows: Array, groups: Array | None = None, num_groups: int = 0) -> Array:
    """The Gram matrix <x_i, x_j> in float64, [m, n] -> [m, m], without a second copy of the rows.

    With groups, for each group of columns, [num_groups, m, m], by digits; see `multiply_by_digits`.

    Products of float32 rows are accumulated in float64; on TPUs, products over many columns are exact, by digits.
    Products of packed rows are accumulated in float32 within blocks of columns, and in float64 over blocks. On CPUs
    they are computed by the native kernel in gram.cc, if available.
    """
    if groups is not None or _takes_digits(rows):
        return _multiply_by_digits(rows, rows, groups, num_groups)
    if rows.size and rows.dtype in (jnp.float32, jnp.uint16) and not explain_missing_kernel():
        return compute_gram_by_kernel(rows)
    entries = _CPU_BLOCK if target_platform() == "cpu" else _ACCELERATOR_BLOCK
    return tree.sum_over_blocks(_products_of_block, max(1, entries // rows.shape[0]), rows)


def _multiply_by_digits(left: Array, right: Array, groups: Array | None, num_groups: int) -> Array:
    multiply = functools.partial(multiply_by_digits, num_groups=num_groups)
    size = block_size(len(left), len(right))
    return tree.sum_over_blocks(multiply, size, *_with_groups(left, right, groups=groups), multiple=EXACT_COLUMNS)


def _with_groups(*rows: Array, groups: Array | None) -> tuple[Array, ...]:
    return rows if groups is None else (*rows, groups)


def _takes_digits(rows: Array) -> bool:
    return target_platform() == "tpu" and rows.dtype == jnp.float32 and rows.size > _FEW_ENTRIES


def _products_of_block(rows: Array) -> Array:
    rows = _widen(rows) if rows.dtype == jnp.uint16 else rows.astype(float)
    return jnp.matmul(rows, rows.T, precision=jax.lax.Precision.HIGHEST).astype(float)


explain_missing_kernel = kernels.make_check(__file__, gram=("gram_float32", "gram_bfloat16"))


def compute_gram_by_kernel(rows: Array) -> Array:
    """The Gram matrix in float64 by the native kernel, [..., m, n] -> [..., m, m]; rows as in `StackedUpdates`."""
    symbol = "gram_float32" if rows.dtype == jnp.float32 else "gram_bfloat16"
    out = jax.ShapeDtypeStruct((*rows.shape[:-1], rows.shape[-2]), jnp.float64)
    return kernels.prepare_call(symbol, out, vmap_method="broadcast_all")(rows)


def combination(coefficients: Array, stack: PyTree) -> PyTree:
    """sum_i c_i u_i over leaves [m, ...], in float32 for packed leaves, without a second copy of the stack.

    Coefficients [m], or [leaves, m] with separate coefficients per leaf.
    """

    def combine(leaf: Array, coefficients: Array) -> Array:
        if leaf.dtype != jnp.uint16:
            return tree.weighted_sum(leaf, coefficients)
        add = lambda i, total: total + coefficients[i].astype(total.dtype) * _widen(leaf[i])  # noqa: E731
        return jax.lax.fori_loop(0, leaf.shape[0], add, jnp.zeros(leaf.shape[1:], jnp.float32))

    leaves, structure = jax.tree.flatten(stack)
    leaf_coefficients = coefficients if coefficients.ndim == 2 else itertools.repeat(coefficients, len(leaves))
    return structure.unflatten([combine(*pair) for pair in zip(leaves, leaf_coefficients, strict=True)])


def _widen(x: Array) -> Array:
    return jax.lax.bitcast_convert_type(x.astype(jnp.uint32) << 16, jnp.float32) if x.dtype == jnp.uint16 else x

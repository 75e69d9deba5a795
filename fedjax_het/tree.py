"""Arithmetic on pytrees, and on stacks of them (leaves [cohort, ...])."""

from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp
from flax import traverse_util

from fedjax_het._internal.finite import all_finite
from fedjax_het._internal.target_platform import target_platform
from fedjax_het.types import Array, HostArray, PyTree, Variables

_LARGE_ROW = 1 << 20  # bytes; see `_take_rows`


def add(a: PyTree, b: PyTree) -> PyTree:
    """a + b, leaf by leaf."""
    return jax.tree.map(jnp.add, a, b)


def subtract(a: PyTree, b: PyTree) -> PyTree:
    """a - b, leaf by leaf."""
    return jax.tree.map(jnp.subtract, a, b)


def scale(factor: Array | float, tree: PyTree) -> PyTree:
    """factor * tree; every leaf keeps its dtype."""
    return jax.tree.map(lambda x: (factor * x).astype(x.dtype), tree)


def broadcast(tree: PyTree, num: int) -> PyTree:
    """A stack of `num` copies of a tree, leaves [num, ...]."""
    return jax.tree.map(lambda x: jnp.broadcast_to(x, (num, *jnp.shape(x))), tree)


def zeros_like(tree: PyTree) -> PyTree:
    """Zeros of the shapes and dtypes of a tree."""
    return jax.tree.map(jnp.zeros_like, tree)


def where(condition: Array, yes: PyTree, no: PyTree) -> PyTree:
    """Select between leaves; `condition` has the leading axes of every leaf and is broadcast over the others."""
    return jax.tree.map(lambda y, n: jnp.where(add_axes(condition, y.ndim), y, n), yes, no)


def choose(condition: Array, yes: PyTree, no: PyTree) -> PyTree:
    """Select one of two trees by a condition []; by a branch on CPUs, where XLA would compile a loop for each leaf.

    Branches must agree in shapes and dtypes. Others are left to `where`, so that a slot that changes the shape of its
    state gets the error that names it.
    """
    kinds = [[(jnp.shape(x), jnp.result_type(x)) for x in jax.tree.leaves(tree)] for tree in (yes, no)]
    if target_platform() == "cpu" and kinds[0] == kinds[1]:
        return jax.lax.cond(condition, lambda: yes, lambda: no)
    return where(condition, yes, no)


def add_axes(values: Array, num_axes: int) -> Array:
    """The values with axes of length 1 behind their own, `num_axes` in all, to be broadcast over the last ones."""
    return values.reshape(values.shape + (1,) * (num_axes - values.ndim))


def squared_norm(tree: PyTree) -> Array:
    """The sum of squares over all leaves."""
    return sum((jnp.sum(jnp.square(x)) for x in jax.tree.leaves(tree)), jnp.zeros(()))


def norm(tree: PyTree) -> Array:
    """Euclidean norm over all leaves; its gradient at zero is zero, not NaN."""
    return safe_sqrt(squared_norm(tree))


def safe_sqrt(squared: Array) -> Array:
    """Square root whose gradient at zero is zero, not NaN."""
    is_positive = squared > 0
    return jnp.where(is_positive, jnp.sqrt(jnp.where(is_positive, squared, 1.0)), 0.0)


def positive_or_one(values: Array | float) -> Array:
    """The values that are positive, and 1 for the others: divisors."""
    return jnp.where(values > 0, values, 1)


def is_finite(tree: PyTree) -> Array:
    """[] bool: whether all entries of all floating leaves are finite."""
    return all_finite([x for x in jax.tree.leaves(tree) if jnp.issubdtype(x.dtype, jnp.floating)])


def weighted_sum(stack: PyTree, weights: Array) -> PyTree:
    """sum_i weights_i x_i over the leading axis, in one pass over the stack; weights [n, cohort] give n such sums.

    Rows with weight zero are not skipped, so that a NaN in them reaches the sum: absent clients must be zeros.
    To select rows would copy the stack, and took twenty times as long on a CPU.
    """

    def sum_leaf(leaf: Array) -> Array:
        return jnp.tensordot(weights.astype(leaf.dtype), leaf, axes=1, precision=jax.lax.Precision.HIGHEST)

    return jax.tree.map(sum_leaf, stack)


def sum_rows(stack: PyTree) -> PyTree:
    """sum_i x_i over the leading axis; on CPUs as a product, because XLA's sum takes up to fifty times as long."""

    def sum_leaf(leaf: Array) -> Array:
        is_product = target_platform() == "cpu" and leaf.ndim > 1 and leaf.dtype in (jnp.float32, jnp.float64)
        return weighted_sum(leaf, jnp.ones(len(leaf))) if is_product else jnp.sum(leaf, axis=0)

    return jax.tree.map(sum_leaf, stack)


def sum_over_blocks(function: Callable[..., Array], size: int, *rows: Array, multiple: int = 1) -> Array:
    """Evaluate a function that sums over the columns of rows, block by block; columns of zeros do not change the sum.

    All blocks have the same width, so the function is compiled once. In the last block, columns of the previous block
    are zeros.

    Args:
        function: Blocks of the rows -> their sum.
        size: The maximum number of columns of a block, a multiple of `multiple`.
        rows: Each [any, columns].
        multiple: The width of a block is a multiple of this if there are several blocks.
    """
    num_columns = rows[0].shape[1]
    num_blocks = -(-num_columns // size)
    if num_blocks <= 1:
        return function(*rows)
    width = min(size, -(-num_columns // (num_blocks * multiple)) * multiple)

    def add_block(index: Array, total: Array) -> Array:
        begin = jnp.minimum(index * width, num_columns - width)
        is_new = begin + jnp.arange(width) >= index * width
        parts = (jax.lax.dynamic_slice_in_dim(matrix, begin, width, axis=1) for matrix in rows)
        return total + function(*(jnp.where(is_new, part, jnp.zeros_like(part)) for part in parts))

    blocks = [jax.ShapeDtypeStruct((len(matrix), width), matrix.dtype) for matrix in rows]
    result = jax.eval_shape(function, *blocks)
    return jax.lax.fori_loop(0, num_blocks, add_block, jnp.zeros(result.shape, result.dtype))


def map_over_blocks(function: Callable[[Array], Array], size: int, rows: Array) -> Array:
    """Evaluate a function of columns, [cohort, columns] -> [columns], `size` columns at a time."""
    num_before = max(0, rows.shape[1] - 1) // size
    last = function(rows[:, num_before * size :])
    if not num_before:
        return last
    block = lambda index: jax.lax.dynamic_slice_in_dim(rows, index * size, size, axis=1)  # noqa: E731
    blocks = jax.lax.map(lambda index: function(block(index)), jnp.arange(num_before))
    return jnp.concatenate([blocks.ravel(), last])


def take(stack: PyTree, index: HostArray | int | slice) -> PyTree:
    """The rows at `index` of every leaf."""
    return jax.tree.map(lambda x: _take_rows(x, index), stack)


def _take_rows(x: Array, index: HostArray | int | slice) -> Array:
    """x[index]; one by one where the compiler for TPUs would copy all of x for them, from a mebibyte a row on."""
    is_gather = isinstance(x, jax.Array) and not isinstance(index, int | slice) and index.ndim == 1
    if not is_gather or target_platform() != "tpu" or x.nbytes <= _LARGE_ROW * len(x):
        return x[index]
    return jax.lax.map(lambda i: jax.lax.dynamic_index_in_dim(x, i, keepdims=False), jnp.asarray(index))


def put(stack: PyTree, index: Array, rows: PyTree) -> PyTree:
    """Replace the rows at `index` of every leaf."""
    return jax.tree.map(lambda x, r: x.at[index].set(r), stack, rows)


def leaves_by_path(variables: Variables) -> dict[str, Array]:
    """Every leaf by its path, "params/classifier/kernel"."""
    leaves: Variables = traverse_util.flatten_dict(variables, sep="/")
    return leaves


def from_paths(leaves: Mapping[str, PyTree]) -> Variables:
    """The tree of leaves by path; the inverse of `leaves_by_path`."""
    variables: Variables = traverse_util.unflatten_dict(leaves, sep="/")
    return variables


def paths(variables: Variables) -> list[str]:
    """The path of every leaf, "params/classifier/kernel"."""
    return list(leaves_by_path(variables))


def describe_leaves(tree: PyTree) -> dict[str, str]:
    """The type of every leaf by its path: {"server/shared/params/classifier/bias": "float32[1, 10]"}."""
    return {
        jax.tree_util.keystr(path, simple=True, separator="/"): f"{leaf.dtype}{list(leaf.shape)}"
        for path, leaf in jax.tree.leaves_with_path(tree)
    }


def split_params(variables: Variables) -> tuple[PyTree, Variables]:
    """(params, the other collections) of a model's variables."""
    return variables["params"], {name: leaves for name, leaves in variables.items() if name != "params"}


def partition(variables: Variables, is_chosen: Callable[[str], bool]) -> tuple[Variables, Variables]:
    """Split a tree into (the other leaves, the chosen leaves) by their paths; `merge` is the inverse."""
    flat = traverse_util.flatten_dict(variables, sep="/")
    chosen = {path: leaf for path, leaf in flat.items() if is_chosen(path)}
    rest = {path: leaf for path, leaf in flat.items() if path not in chosen}
    return traverse_util.unflatten_dict(rest, sep="/"), traverse_util.unflatten_dict(chosen, sep="/")


def partition_like(variables: Variables, like: Variables) -> tuple[Variables, Variables]:
    """Split a tree into (the other leaves, those whose paths are paths of another tree)."""
    return partition(variables, set(paths(like)).__contains__)


def is_parameter(path: str) -> bool:
    """Whether the path of a leaf is that of a parameter, and not of another collection."""
    return path.startswith("params/")


def merge(*trees: Variables) -> Variables:
    """The union of trees; of leaves with the same path the one of the last tree is taken."""
    flat = {}
    for tree in trees:
        flat |= traverse_util.flatten_dict(tree, sep="/")
    return traverse_util.unflatten_dict(flat, sep="/")


def num_bytes(tree: PyTree) -> int:
    """The number of bytes of all leaves."""
    return sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(tree))


def num_entries(tree: PyTree) -> int:
    """The number of entries of all leaves."""
    return sum(x.size for x in jax.tree.leaves(tree))

"""Compiled functions as JAX primitives."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir
from jax.typing import DTypeLike

Shape = tuple[int, ...]
COMPILED: set[Primitive] = set()
"""All primitives."""


def declare(
    name: str,
    call: Callable[..., Any],
    shape_of: Callable[..., Shape | list[Shape]],
    ranks: tuple[int, ...],
    *static: str,
    is_shared: bool = False,
    has_several: bool = False,
    dtype: DTypeLike = jnp.float32,
    xla: Callable[..., Any] | None = None,
) -> Primitive:
    """Declare a primitive that has no derivative yet, whose clients become groups in front of the axes of one client.

    Args:
        name: Its name.
        call: The function of arrays, which may all have one more axis in front, that of groups.
        shape_of: A function from the arguments of `call` to the shape of its result.
        ranks: The number of axes of each array, without that of groups.
        static: The names of settings.
        is_shared: The last array is a kernel or a matrix that images or rows of several batches may share.
        has_several: `call` returns a list of arrays, and `shape_of` one of shapes.
        dtype: That of results.
        xla: The same function by XLA, for a first array that the others share; None: that array is repeated.
    """

    def batched(arguments: tuple[Array, ...], axes: tuple[int | None, ...], **settings: Any) -> tuple[Any, Any]:
        """Clients become groups, and what they share is repeated; but rows under one matrix are more rows."""
        if xla is not None and axes[0] is None:
            return jax.vmap(xla, axes)(*arguments), 0
        size = next(a.shape[axis] for a, axis in zip(arguments, axes, strict=True) if axis is not None)
        is_merged = is_shared and axes[-1] is None and arguments[-1].ndim == ranks[-1]
        num_own = len(ranks) - is_merged
        own = [_move_to_front(*pair, size) for pair in zip(arguments[:num_own], axes[:num_own], strict=True)]
        num_inner = [rank - is_merged for rank in ranks[:num_own]]  # the axes behind those that are merged
        merged = [a.reshape(-1, *a.shape[a.ndim - rank :]) for a, rank in zip(own, num_inner, strict=True)]
        results = primitive.bind(*merged, *arguments[num_own:], **settings)
        front = own[0].shape[: own[0].ndim - num_inner[0]]
        results = jax.tree.map(lambda x: x.reshape(*front, *x.shape[1:]), results)
        return results, jax.tree.map(lambda x: 0, results)

    def find_avals(*arguments: Array, **settings: Any) -> Any:
        shapes = shape_of(*arguments, **settings)
        avals = [jax.core.ShapedArray(shape, jnp.dtype(dtype)) for shape in (shapes if has_several else [shapes])]
        return avals if has_several else avals[0]

    primitive = make_primitive(name, call, find_avals, static, has_several=has_several)
    batching.primitive_batchers[primitive] = batched
    return primitive


def declare_unbatched(
    name: str,
    call: Callable[..., Any],
    shapes_of: Callable[..., list[jax.ShapeDtypeStruct]],
    xla: Callable[..., Any],
    *static: str,
) -> Primitive:
    """Declare a primitive for a single client; several are computed by XLA, which divides them among cores and devices.

    Args:
        name: Its name.
        call: The function of arrays, which returns several.
        shapes_of: A function from the arguments of `call` to the shapes of its results.
        xla: The same function by XLA, whose derivatives are those of the primitive.
        static: The names of settings.
    """

    def find_avals(*arguments: Array, **settings: Any) -> list[jax.core.ShapedArray]:
        return [jax.core.ShapedArray(x.shape, x.dtype) for x in shapes_of(*arguments, **settings)]

    def batched(arguments: tuple[Array, ...], axes: tuple[int | None, ...], **settings: Any) -> tuple[Any, Any]:
        results = jax.vmap(partial(xla, **settings), axes)(*arguments)
        return results, [0] * len(results)

    def differentiate(primals: tuple[Array, ...], tangents: tuple[Any, ...], **settings: Any) -> tuple[Any, Any]:
        tangents = tuple(map(ad.instantiate_zeros, tangents))
        return primitive.bind(*primals, **settings), jax.jvp(partial(xla, **settings), primals, tangents)[1]

    primitive = make_primitive(name, call, find_avals, static, has_several=True)
    batching.primitive_batchers[primitive] = batched
    ad.primitive_jvps[primitive] = differentiate
    return primitive


def make_primitive(
    name: str, call: Callable[..., Any], find_avals: Callable[..., Any], static: tuple[str, ...], *, has_several: bool
) -> Primitive:
    """Make a primitive without derivatives and without a rule for several clients; see `declare`."""
    primitive = Primitive(name)
    COMPILED.add(primitive)
    primitive.multiple_results = has_several
    primitive.def_abstract_eval(find_avals)
    primitive.def_impl(jax.jit(call, static_argnames=static))
    mlir.register_lowering(primitive, mlir.lower_fun(call, multiple_results=has_several))
    return primitive


def _move_to_front(array: Array, axis: int | None, size: int) -> Array:
    if axis is None:
        return jnp.broadcast_to(array, (size, *array.shape))
    return jnp.moveaxis(array, axis, 0)

"""Compiled max pooling as JAX primitives, float32, on a CPU.

The maximum has a linear derivative, which picks entries of the images, and whose transpose puts entries back.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.interpreters import ad

from fedjax_het._internal import kernels
from fedjax_het._internal.primitives import declare
from fedjax_het.types import Array

Window = tuple[int, int]

explain_missing_kernel = kernels.make_check(__file__, pooling=("max_pool", "max_pool_gradient"))
_LANES = 8  # floats in a register


def is_faster(shape: tuple[int, ...]) -> bool:
    """Whether this is faster than XLA's loops, which take a pixel's channels one by one if they fill no register.

    Measured: with 6 channels, pooling and its gradient take a sixth of XLA's time, with 32 up to twice of it.
    """
    return shape[-1] % _LANES != 0


def max_pool(x: Array, window: Window) -> Array:
    """[n, h, w, c] -> [n, h // height, w // width, c], for windows that lie side by side."""
    return _max_pool.bind(x, window=window)[0]


def cut_into_windows(x: Array, window: Window) -> Array:
    """[..., h, w, c] -> [..., rows, window height, columns, window width, c]; the rest is cut off."""
    (height, width), (*front, rows, columns, channels) = window, _pooled_shape(x.shape, window)
    cropped = x[..., : rows * height, : columns * width, :]
    return cropped.reshape(*front, rows, height, columns, width, channels)


def pick_entries(windows: Array, places: Array) -> Array:
    """The entry of each window at a place, its number in row order [..., rows, columns, c]."""
    height, width = windows.shape[-4], windows.shape[-2]
    # A mask instead of a gather: its transpose is a single pass that writes every entry once.
    numbers = np.arange(height * width, dtype=places.dtype).reshape(height, 1, width, 1)
    is_picked = jnp.expand_dims(places, (-4, -2)) == numbers
    return jnp.sum(jnp.where(is_picked, windows, 0), axis=(-4, -2))


def _pooled_shape(shape: tuple[int, ...], window: Window) -> tuple[int, ...]:
    return *shape[:-3], shape[-3] // window[0], shape[-2] // window[1], shape[-1]


def _attributes(window: Window) -> dict[str, Any]:
    return {name: np.int64(size) for name, size in zip(("height", "width"), window, strict=True)}


def _call_max_pool(x: Array, *, window: Window) -> list[Array]:
    shape = _pooled_shape(x.shape, window)
    results = [jax.ShapeDtypeStruct(shape, jnp.float32)] * 2
    return kernels.prepare_call("max_pool", results)(x, **_attributes(window))


def _call_put_back(entries: Array, places: Array, *, window: Window, size: Window) -> Array:
    result = jax.ShapeDtypeStruct(_restored_shape(entries, places, window=window, size=size), jnp.float32)
    return kernels.prepare_call("max_pool_gradient", result)(entries, places, **_attributes(window))


def _restored_shape(entries: Array, places: Array, *, window: Window, size: Window) -> tuple[int, ...]:
    return *entries.shape[:-3], *size, entries.shape[-1]


_max_pool = declare(
    "max_pool", _call_max_pool, lambda x, window: [_pooled_shape(x.shape, window)] * 2, (4,), "window", has_several=True
)
_pick = declare(
    "pick_entries",
    lambda x, places, *, window: pick_entries(cut_into_windows(x, window), places),
    lambda x, places, window: places.shape,
    (4, 4),
    "window",
)
_put_back = declare("put_back_entries", _call_put_back, _restored_shape, (4, 4), "window", "size")


def _differentiate(primals: tuple[Array], tangents: tuple[Array], *, window: Window) -> tuple[list[Array], list]:
    """Places count as constants, though they are numbers in float32, as all arrays of these primitives."""
    largest, places = _max_pool.bind(*primals, window=window)
    tangent = _pick.bind(ad.instantiate_zeros(tangents[0]), places, window=window)
    return [largest, places], [tangent, ad.Zero(jax.typeof(places))]


ad.primitive_jvps[_max_pool] = _differentiate
ad.defbilinear(
    _pick,
    lambda ct, x, places, *, window: _put_back.bind(ct, places, window=window, size=x.aval.shape[-3:-1]),
    None,
)
ad.defbilinear(_put_back, lambda ct, entries, places, *, window, size: _pick.bind(ct, places, window=window), None)

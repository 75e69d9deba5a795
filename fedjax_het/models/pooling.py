"""Pooling over windows of images, [batch, height, width, channel]."""

from functools import partial, reduce

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from fedjax_het.models.windows import Padding, Pair, pads_of, pair
from fedjax_het.types import Array


def max_pool(x: Array, window: Pair = 2, strides: Pair | None = None, padding: Padding = "VALID") -> Array:
    """The largest value of each window, [batch, height, width, channel]; `strides` default to the window.

    No gradient is scattered: windows that do not overlap are reduced after a reshape, others entry by entry. Where the
    largest value occurs several times in a window the first, row by row, takes the gradient, as in PyTorch.
    """
    if (windows := _windows(x, window, strides, padding)) is not None:
        return _largest(windows)
    window, strides = pair(window), pair(strides or window)
    pads = pads_of("pooling", x.shape[1:3], window, strides, padding)
    x = jnp.pad(x, ((0, 0), *pads, (0, 0)), constant_values=-jnp.inf)
    return _largest_of_overlapping(x, window, strides)


def avg_pool(x: Array, window: Pair = 2, strides: Pair | None = None, padding: Padding = "VALID") -> Array:
    """The mean of each window; padding counts as zeros, as in PyTorch."""
    if (windows := _windows(x, window, strides, padding)) is not None:
        return windows.mean(axis=(2, 4))
    window, strides = pair(window), pair(strides or window)
    return nn.avg_pool(x, window, strides, pads_of("pooling", x.shape[1:3], window, strides, padding))


def _windows(x: Array, window: Pair, strides: Pair | None, padding: Padding) -> Array | None:
    """[batch, rows, window height, columns, window width, channel], or None where windows overlap or are padded."""
    height, width = pair(window)
    pads_of("pooling", x.shape[1:3], (height, width), pair(strides or window), padding)
    if padding not in ("VALID", 0) or pair(strides or window) != (height, width):
        return None
    rows, columns = x.shape[1] // height, x.shape[2] // width
    cropped = x[:, : rows * height, : columns * width]
    return cropped.reshape(x.shape[0], rows, height, columns, width, x.shape[-1])


@jax.custom_jvp
def _largest(windows: Array) -> Array:
    """The maximum of each window, axes 2 and 4; its gradient follows the comparisons that found it.

    The gradient of jnp.max looks for entries that equal the maximum. Where XLA computes the entries a second time for
    it, rounded otherwise, it finds none, and the window's gradient is lost.
    """
    return _first_largest(_entries_apart(windows))[0]


@_largest.defjvp
def _largest_jvp(values: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
    (windows,), (tangent,) = values, tangents
    largest, where = _first_largest(_entries_apart(windows))
    # A mask, not a gather: its transpose is one pass that writes every entry once.
    height, width = windows.shape[2], windows.shape[4]
    places = np.arange(height * width, dtype=np.int32).reshape(height, 1, width, 1)
    is_it = where[:, :, None, :, None] == places
    return largest, jnp.sum(jnp.where(is_it, tangent, 0), axis=(2, 4))


@partial(jax.custom_jvp, nondiff_argnums=(1, 2))
def _largest_of_overlapping(x: Array, window: tuple[int, int], strides: tuple[int, int]) -> Array:
    """The same for windows that share pixels; a sixth of the time of XLA's select-and-scatter on a CPU."""
    return _first_largest(_entries(x, window, strides))[0]


@_largest_of_overlapping.defjvp
def _largest_of_overlapping_jvp(
    window: tuple[int, int], strides: tuple[int, int], values: tuple[Array], tangents: tuple[Array]
) -> tuple[Array, Array]:
    largest, where = _first_largest(_entries(values[0], window, strides))
    entries = _entries(tangents[0], window, strides)
    return largest, sum(jnp.where(where == place, entry, 0) for place, entry in enumerate(entries))


def _entries(x: Array, window: tuple[int, int], strides: tuple[int, int]) -> list[Array]:
    """The image as each entry of the windows sees it, row by row of a window."""
    rows, columns = ((n - k) // s * s + 1 for n, k, s in zip(x.shape[1:3], window, strides, strict=True))
    return [
        x[:, i : i + rows : strides[0], j : j + columns : strides[1]]
        for i in range(window[0])
        for j in range(window[1])
    ]


def _entries_apart(windows: Array) -> list[Array]:
    return [windows[:, :, i, :, j] for i in range(windows.shape[2]) for j in range(windows.shape[4])]


def _first_largest(entries: list[Array]) -> tuple[Array, Array]:
    """The maximum of each window, and its place: the first, row by row, where there are several."""
    return reduce(_larger, ((entry, jnp.full(entry.shape, place)) for place, entry in enumerate(entries)))


def _larger(first: tuple[Array, Array], second: tuple[Array, Array]) -> tuple[Array, Array]:
    return jnp.maximum(first[0], second[0]), jnp.where(first[0] >= second[0], first[1], second[1])

"""Convolution that is fast on each backend, and pooling."""

from functools import reduce

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from jax import lax

from fedjax_het.errors import InputError
from fedjax_het.models.lowerings import Pads, lowered
from fedjax_het.types import Array

Pair = int | tuple[int, int]
Padding = str | int | Pads


class Conv(nn.Module):
    """A two-dimensional convolution, [batch, height, width, channel] -> [batch, height', width', features].

    `lowering` says how it is computed, never what: "auto", "lax", "patches" or "native", see `lowerings`.

    kernel [height, width, channel, features] and bias [features] are named and shaped as in `flax.linen.Conv`.
    `padding` is "SAME", "VALID", one count for every side, or ((top, bottom), (left, right)).
    Raises InputError for an unknown lowering and for an image that is smaller than the kernel.
    """

    features: int
    kernel_size: Pair = 3
    strides: Pair = 1
    padding: Padding = "SAME"
    use_bias: bool = True
    dtype: jnp.dtype | None = None
    param_dtype: jnp.dtype = jnp.float32
    lowering: str = "auto"
    kernel_init: nn.initializers.Initializer = nn.initializers.he_normal()
    bias_init: nn.initializers.Initializer = nn.initializers.zeros

    @nn.compact
    def __call__(self, x: Array) -> Array:
        size, strides = _pair(self.kernel_size), _pair(self.strides)
        pads = _pads("convolution", x.shape[1:3], size, strides, self.padding)
        shape = (*size, x.shape[-1], self.features)
        kernel = self.param("kernel", self.kernel_init, shape, self.param_dtype)
        bias = self.param("bias", self.bias_init, (self.features,), self.param_dtype) if self.use_bias else None
        x, kernel, bias = nn.dtypes.promote_dtype(x, kernel, bias, dtype=self.dtype)
        y = lowered(self.lowering, x, kernel, strides, pads)
        return y if bias is None else y + bias


def max_pool(x: Array, window: Pair = 2, strides: Pair | None = None, padding: Padding = "VALID") -> Array:
    """The largest value of each window, [batch, height, width, channel]; `strides` default to the window.

    Windows that do not overlap are reduced after a reshape, whose gradient needs no scatter. Where the largest value
    occurs several times in a window the first, row by row, takes the gradient, as in PyTorch.
    """
    if (windows := _windows(x, window, strides, padding)) is not None:
        return _largest(windows)
    return nn.max_pool(x, _pair(window), _pair(strides or window), _sides(padding))


def avg_pool(x: Array, window: Pair = 2, strides: Pair | None = None, padding: Padding = "VALID") -> Array:
    """The mean of each window; padding counts as zeros, as in PyTorch."""
    if (windows := _windows(x, window, strides, padding)) is not None:
        return windows.mean(axis=(2, 4))
    return nn.avg_pool(x, _pair(window), _pair(strides or window), _sides(padding))


def _windows(x: Array, window: Pair, strides: Pair | None, padding: Padding) -> Array | None:
    """[batch, rows, window height, columns, window width, channel], or None where windows overlap or are padded."""
    height, width = _pair(window)
    _pads("pooling", x.shape[1:3], (height, width), _pair(strides or window), padding)
    if padding not in ("VALID", 0) or _pair(strides or window) != (height, width):
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
    return _first_largest(windows)[0]


@_largest.defjvp
def _largest_jvp(values: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
    (windows,), (tangent,) = values, tangents
    largest, where = _first_largest(windows)
    # A mask, not a gather: its transpose is one pass that writes every entry once.
    is_it = where[:, :, None, :, None] == _places(windows)
    return largest, jnp.sum(jnp.where(is_it, tangent, 0), axis=(2, 4))


def _first_largest(windows: Array) -> tuple[Array, Array]:
    """The maximum of each window, and its place: the first, row by row, where there are several."""
    entries = [
        (entry := windows[:, :, i, :, j], jnp.full(entry.shape, place))
        for (i, _, j, _), place in np.ndenumerate(_places(windows))
    ]
    return reduce(_larger, entries)


def _larger(first: tuple[Array, Array], second: tuple[Array, Array]) -> tuple[Array, Array]:
    return jnp.maximum(first[0], second[0]), jnp.where(first[0] >= second[0], first[1], second[1])


def _places(windows: Array) -> np.ndarray:
    """The entries of a window, counted row by row: [window height, 1, window width, 1]."""
    height, width = windows.shape[2], windows.shape[4]
    return np.arange(height * width, dtype=np.int32).reshape(height, 1, width, 1)


def _pair(value: Pair) -> tuple:
    return (value, value) if isinstance(value, int) else tuple(value)


def _sides(padding: Padding) -> str | Pads:
    return padding if isinstance(padding, str) else tuple(_pair(side) for side in _pair(padding))


def _pads(layer: str, size: Pair, window: Pair, strides: Pair, padding: Padding) -> Pads:
    """((top, bottom), (left, right)). Raises InputError where the window is larger than the padded image."""
    pads = _sides(padding)
    if isinstance(pads, str):
        pads = tuple(lax.padtype_to_pads(size, window, strides, pads))
    for name, n, k, pad in zip(("height", "width"), size, window, pads, strict=True):
        if n + sum(pad) < k:
            raise InputError(
                f"{layer}: {name} {n} with padding {pad} is below the window's {k}. "
                "Use larger images, a smaller window, or padding='SAME'."
            )
    return pads

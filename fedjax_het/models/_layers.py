"""Layers: convolutions, pooling, padding, and the stem of ResNets and DenseNets."""

import inspect
from collections.abc import Callable
from functools import partial, reduce
from typing import Literal, TypedDict

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax import lax

from fedjax_het.errors import InputError
from fedjax_het.models._conv_impl import Pads, check_conv_impl, convolve
from fedjax_het.models._dense import add_bias, param
from fedjax_het.models._model import NumClasses, from_flax
from fedjax_het.models._native import pooling
from fedjax_het.models._norms import NormKind, norm
from fedjax_het.models._pretrained import Naming
from fedjax_het.models._published import starting_from
from fedjax_het.types import Array, Model
from fedjax_het.validation import Positive, validate_arguments

Pair = int | tuple[int, int]
Padding = str | int | Pads


def pair(value: Pair) -> tuple[int, int]:
    """(height, width); a single number applies to both."""
    return (value, value) if isinstance(value, int) else tuple(value)


def to_pads(layer: str, image: Array, window: tuple[int, int], strides: tuple[int, int], padding: Padding) -> Pads:
    """((top, bottom), (left, right)) for "SAME", "VALID", one count for all sides, or explicit pairs.

    Raises:
        InputError: The window is larger than the padded image.
    """
    size = image.shape[1:3]
    if isinstance(padding, str):
        rows, columns = lax.padtype_to_pads(size, window, strides, padding)
    else:
        rows, columns = (padding, padding) if isinstance(padding, int) else padding
    pads = pair(rows), pair(columns)
    for name, n, k, pad in zip(("height", "width"), size, window, pads, strict=True):
        if n + sum(pad) < k:
            raise InputError(
                f"{layer}: {name} {n} with padding {pad} is below the window's {k}. "
                "Use larger images, a smaller window, or padding='SAME'."
            )
    return pads


class Conv(nn.Module):
    """A two-dimensional convolution, [batch, height, width, channel] -> [batch, height', width', features].

    `impl` selects the implementation: "auto", "lax", "im2col" and so on, see `_conv_impl`.

    kernel [height, width, channel, features] and bias [features] are named and shaped as in `flax.linen.Conv`.
    `padding` is "SAME", "VALID", one count for all sides, or ((top, bottom), (left, right)).
    Raises InputError for an unknown impl or an image smaller than the kernel.
    """

    features: int
    kernel_size: Pair = 3
    strides: Pair = 1
    padding: Padding = "SAME"
    use_bias: bool = True
    dtype: jnp.dtype | None = None
    param_dtype: jnp.dtype = jnp.float32
    impl: str = "auto"
    kernel_init: nn.initializers.Initializer = nn.initializers.he_normal()
    bias_init: nn.initializers.Initializer = nn.initializers.zeros

    @nn.compact
    def __call__(self, x: Array) -> Array:
        size, strides = pair(self.kernel_size), pair(self.strides)
        pads = to_pads("convolution", x, size, strides, self.padding)
        shape = (*size, x.shape[-1], self.features)
        kernel = param(self, "kernel", self.kernel_init, shape, self.param_dtype)
        bias = param(self, "bias", self.bias_init, (self.features,), self.param_dtype) if self.use_bias else None
        x, kernel, bias = nn.dtypes.promote_dtype(x, kernel, bias, dtype=self.dtype)
        return convolve(self.impl, x, kernel, strides, pads, bias)


class UpConv(nn.Module):
    """A transposed convolution without overlap: each pixel becomes `scale` x `scale` pixels of `features` channels.

        y[s i + a, s j + b] = x[i, j] K[a, b] + bias,   [batch, height, width, channel] -> [batch, s height, s width, f]

    kernel [s, s, features, channel], the shape of `flax.linen.ConvTranspose` with `transpose_kernel`; bias [features].
    """

    features: int
    scale: int = 2
    impl: str = "auto"

    @nn.compact
    def __call__(self, x: Array) -> Array:
        scale, (*batch, height, width, channels) = self.scale, x.shape
        init = nn.initializers.he_normal(in_axis=-1, out_axis=-2)
        kernel = param(self, "kernel", init, (scale, scale, self.features, channels))
        bias = param(self, "bias", nn.initializers.zeros, (self.features,))
        x, kernel, bias = nn.dtypes.promote_dtype(x, kernel, bias)
        product = kernel.transpose(3, 0, 1, 2).reshape(1, 1, channels, -1)
        y = convolve(self.impl, x, product, (1, 1), ((0, 0), (0, 0)))
        y = y.reshape(*batch, height, width, scale, scale, self.features).swapaxes(-4, -3)
        return add_bias(y.reshape(*batch, scale * height, scale * width, self.features), bias)


def max_pool(x: Array, window: Pair = 2, strides: Pair | None = None, padding: Padding = "VALID") -> Array:
    """Max pooling, [batch, height, width, channel].

    The gradient needs no scatter: non-overlapping windows are reduced after a reshape, others entry by entry. If the
    maximum occurs several times in a window, the first one in row order gets the gradient, as in PyTorch.

    Args:
        x: Images.
        window: Height and width of the window; a single number applies to both.
        strides: Strides of the window (default None, the window size).
        padding: See `to_pads`.
    """
    window, strides = pair(window), pair(strides or window)
    pads = to_pads("pooling", x, window, strides, padding)
    if _lie_side_by_side(window, strides, padding):
        is_native = x.dtype == jnp.float32 and pooling.is_faster(x.shape) and not pooling.explain_missing_kernel()
        return pooling.max_pool(x, window) if is_native else _largest(pooling.cut_into_windows(x, window))
    x = jnp.pad(x, ((0, 0), *pads, (0, 0)), constant_values=-jnp.inf)
    return _largest_of_overlapping(x, window, strides)


def avg_pool(x: Array, window: Pair = 2, strides: Pair | None = None, padding: Padding = "VALID") -> Array:
    """Average pooling; padding counts as zeros, as in PyTorch. Arguments as in `max_pool`."""
    window, strides = pair(window), pair(strides or window)
    pads = to_pads("pooling", x, window, strides, padding)
    if _lie_side_by_side(window, strides, padding):
        return pooling.cut_into_windows(x, window).mean(axis=(2, 4))
    return nn.avg_pool(x, window, strides, pads)


def _lie_side_by_side(window: tuple[int, int], strides: tuple[int, int], padding: Padding) -> bool:
    """Whether windows neither overlap nor are padded."""
    return padding in ("VALID", 0) and strides == window


@jax.custom_jvp
def _largest(windows: Array) -> Array:
    """The maximum of each window, axes 2 and 4; its gradient follows the comparisons that determined it.

    The gradient of jnp.max compares entries with the maximum. If XLA recomputes the entries with different rounding,
    no entry is equal, and the gradient of the window is lost.
    """
    return _first_largest(_split_windows(windows))[0]


@_largest.defjvp
def _largest_jvp(values: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
    (windows,), (tangent,) = values, tangents
    largest, where = _first_largest(_split_windows(windows))
    return largest, pooling.pick_entries(tangent, where)


@partial(jax.custom_jvp, nondiff_argnums=(1, 2))
def _largest_of_overlapping(x: Array, window: tuple[int, int], strides: tuple[int, int]) -> Array:
    """The same for overlapping windows; takes a sixth of the time of XLA's select-and-scatter on a CPU."""
    return _first_largest(select_entries(x, window, strides))[0]


@_largest_of_overlapping.defjvp
def _largest_of_overlapping_jvp(
    window: tuple[int, int], strides: tuple[int, int], values: tuple[Array], tangents: tuple[Array]
) -> tuple[Array, Array]:
    largest, where = _first_largest(select_entries(values[0], window, strides))
    entries = select_entries(tangents[0], window, strides)
    return largest, reduce(jnp.add, (jnp.where(where == place, entry, 0) for place, entry in enumerate(entries)))


def select_entries(x: Array, window: tuple[int, int], strides: tuple[int, int]) -> list[Array]:
    """The image as each entry of the windows sees it, row by row of a window."""
    rows, columns = ((n - k) // s * s + 1 for n, k, s in zip(x.shape[1:3], window, strides, strict=True))
    return [
        x[:, i : i + rows : strides[0], j : j + columns : strides[1]]
        for i in range(window[0])
        for j in range(window[1])
    ]


def _split_windows(windows: Array) -> list[Array]:
    return [windows[:, :, i, :, j] for i in range(windows.shape[2]) for j in range(windows.shape[4])]


def _first_largest(entries: list[Array]) -> tuple[Array, Array]:
    """The maximum of each window and its index; the first in row order if there are several."""
    return reduce(_larger, ((entry, jnp.full(entry.shape, place)) for place, entry in enumerate(entries)))


def _larger(first: tuple[Array, Array], second: tuple[Array, Array]) -> tuple[Array, Array]:
    return jnp.maximum(first[0], second[0]), jnp.where(first[0] >= second[0], first[1], second[1])


StemKind = Literal["imagenet", "small"]


class NetworkParts(TypedDict):
    """The common parts of networks with a stem."""

    stem: StemKind
    norm: NormKind
    impl: str


class Stem(nn.Module):
    """Convolution, norm and ReLU.

    kind: "imagenet" is a 7x7 convolution and 3x3 max pooling, each with stride 2, which reduce each side to a quarter.
    "small" is a 3x3 convolution with stride 1, which preserves the size, for images of 32 and 64 pixels.
    """

    features: int
    kind: StemKind
    norm: NormKind
    impl: str

    @nn.compact
    def __call__(self, x: Array, mask: Array, is_training: bool) -> Array:
        is_large = self.kind == "imagenet"
        kernel, strides = (7, 2) if is_large else (3, 1)
        conv = Conv(self.features, kernel, strides, kernel // 2, use_bias=False, impl=self.impl, name="conv")
        x = norm(self.norm, name="norm")(conv(x), mask, is_training)
        # Pooling first is equivalent, since ReLU and maximum commute, and leaves a quarter of the work.
        return nn.relu(max_pool(x, 3, 2, 1) if is_large else x)


def image_network(
    names: Naming, norm: NormKind = "batch"
) -> Callable[[Callable[..., nn.Module]], Callable[..., Model]]:
    """Turn the builder of a network with a stem into a factory with the common options.

    Args:
        names: The names of the network's layers in PyTorch code.
        norm: The default norm.

    Returns:
        A decorator of `build(num_classes, width, **parts)`; the parts are the fields stem, norm and impl of the module.
    """
    usual_norm = norm

    def decorate(build: Callable[..., nn.Module]) -> Callable[..., Model]:
        def factory(
            num_classes: NumClasses,
            *,
            norm: NormKind = usual_norm,
            stem: StemKind = "imagenet",
            width: Positive = 1.0,
            conv: str = "auto",
            pretrained: str | None = None,
        ) -> Model:
            check_conv_impl(conv)
            network = build(num_classes, width, stem=stem, norm=norm, impl=conv)
            return starting_from(pretrained, names)(from_flax(network))

        factory.__doc__ = f"""{inspect.getdoc(build)}

Args:
    num_classes: The number of classes, tags, ranks or targets.
    norm: The norm after each convolution, see `norm`.
    stem: "imagenet", or "small" for images of 32 and 64 pixels, see `Stem`.
    width: Multiplier of all numbers of channels.
    conv: The implementation of convolutions: "auto", "lax", "im2col" or "native".
    pretrained: A .safetensors or .npz file with the PyTorch state dict of the network.

Returns:
    A model for images [batch, height, width, channel].

Raises:
    InputError: Values are invalid."""
        factory.__name__ = factory.__qualname__ = build.__name__
        factory.__module__ = build.__module__
        return validate_arguments(factory)

    return decorate

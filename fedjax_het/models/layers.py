"""Convolutions that are fast on each backend."""

import jax.numpy as jnp
from flax import linen as nn

from fedjax_het.models.lowerings import lowered
from fedjax_het.models.windows import Padding, Pair, pads_of, pair
from fedjax_het.types import Array


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
        size, strides = pair(self.kernel_size), pair(self.strides)
        pads = pads_of("convolution", x.shape[1:3], size, strides, self.padding)
        shape = (*size, x.shape[-1], self.features)
        kernel = self.param("kernel", self.kernel_init, shape, self.param_dtype)
        bias = self.param("bias", self.bias_init, (self.features,), self.param_dtype) if self.use_bias else None
        x, kernel, bias = nn.dtypes.promote_dtype(x, kernel, bias, dtype=self.dtype)
        return lowered(self.lowering, x, kernel, strides, pads, bias)


class UpConv(nn.Module):
    """A transposed convolution without overlap: each pixel becomes `scale` x `scale` pixels of `features` channels.

        y[s i + a, s j + b] = x[i, j] K[a, b] + bias,   [batch, height, width, channel] -> [batch, s height, s width, f]

    kernel [s, s, features, channel], the shape of `flax.linen.ConvTranspose` with `transpose_kernel`; bias [features].
    """

    features: int
    scale: int = 2
    lowering: str = "auto"

    @nn.compact
    def __call__(self, x: Array) -> Array:
        scale, (*batch, height, width, channels) = self.scale, x.shape
        init = nn.initializers.he_normal(in_axis=-1, out_axis=-2)
        kernel = self.param("kernel", init, (scale, scale, self.features, channels))
        bias = self.param("bias", nn.initializers.zeros, (self.features,))
        x, kernel, bias = nn.dtypes.promote_dtype(x, kernel, bias)
        product = kernel.transpose(3, 0, 1, 2).reshape(1, 1, channels, -1)
        y = lowered(self.lowering, x, product, (1, 1), ((0, 0), (0, 0)))
        y = y.reshape(*batch, height, width, scale, scale, self.features).swapaxes(-4, -3)
        return y.reshape(*batch, scale * height, scale * width, self.features) + bias

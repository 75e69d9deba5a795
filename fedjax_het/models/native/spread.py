"""A bias on its way to every pixel, and the sum of the pixels on the way back."""

import jax
import jax.numpy as jnp
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from fedjax_het.models.native.convolution import kernel_gradient
from fedjax_het.types import Array


def spread(bias: Array, shape: tuple[int, ...]) -> Array:
    """[f] -> [n, h, w, f], float32, on a CPU.

    XLA's own broadcast, but for the gradient: that is summed by our kernel, from the very array that the convolution's
    gradients are made of. XLA's sum looks for an array behind the reshapes of pooling and computes all of it anew.
    """
    return _spread.bind(bias, shape=tuple(shape))


def _call(bias: Array, *, shape: tuple[int, ...]) -> Array:
    return jnp.broadcast_to(bias.reshape(*bias.shape[:-1], 1, 1, 1, bias.shape[-1]), shape)


def _sum_of_pixels(y: Array) -> Array:
    """The gradient for a 1 x 1 kernel over an image of ones."""
    ones = jnp.ones((*y.shape[:-1], 1), y.dtype)
    return kernel_gradient(ones, y, (1, 1)).reshape(*y.shape[:-4], y.shape[-1])


def _of_clients(arguments: tuple[Array], axes: tuple[int], *, shape: tuple[int, ...]) -> tuple[Array, int]:
    bias = jnp.moveaxis(arguments[0], axes[0], 0)
    groups = bias.reshape(-1, bias.shape[-1])
    out = _spread.bind(groups, shape=(len(groups), *shape[-4:]))
    return out.reshape(len(bias), *shape), 0


_spread = Primitive("spread")
_spread.def_impl(jax.jit(_call, static_argnames="shape"))
_spread.def_abstract_eval(lambda bias, shape: jax.core.ShapedArray(shape, bias.dtype))
mlir.register_lowering(_spread, mlir.lower_fun(_call, multiple_results=False))
batching.primitive_batchers[_spread] = _of_clients
ad.deflinear2(_spread, lambda ct, bias, shape: [_sum_of_pixels(ct)])

"""The compiled convolution as JAX sees it: two bilinear maps, each the other's transpose, so that every derivative of
every order, forward or reverse, is made of the same two kernels."""

import functools
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from fedjax_het import native
from fedjax_het.types import Array

SOURCE = Path(__file__).with_name("convolution.cc")
_NAMES = {"convolve": "fedjax_het_convolve", "kernel_gradient": "fedjax_het_kernel_gradient"}


@functools.cache
def why_not() -> str | None:
    """None where the kernels can be used, else the reason that they cannot. The first call may compile them."""
    return native.register(SOURCE, _NAMES)


def convolve(x: Array, kernel: Array, stride: int = 1) -> Array:
    """[n, h, w, c] (already padded) with [kh, kw, c, f] -> [n, h', w', f], float32, on a CPU."""
    return _convolve.bind(x[None], kernel[None], stride=stride)[0]


def _out_shape(x, kernel, *, stride):
    groups, images, height, width, _ = x.shape
    _, rows, columns, _, features = kernel.shape
    return groups, images, (height - rows) // stride + 1, (width - columns) // stride + 1, features


def _for_image(y: Array, kernel: Array, *, stride: int, size: tuple[int, int]) -> Array:
    """The transpose of x -> convolve(x, kernel): y spread out and framed by zeros, the kernel turned round."""
    pads = [
        (k - 1, n - (count - 1) * stride - 1, stride - 1)
        for n, k, count in zip(size, kernel.shape[1:3], y.shape[2:4], strict=True)
    ]
    framed = jax.lax.pad(y, np.zeros((), y.dtype), [(0, 0, 0), (0, 0, 0), *pads, (0, 0, 0)])
    return _convolve.bind(framed, jnp.flip(kernel, (1, 2)).swapaxes(3, 4), stride=1)


def _declare(name: str, shape_of) -> Primitive:
    primitive = Primitive(name)
    target = _NAMES[name]

    def call(x, other, *, stride, **static):
        out = jax.ShapeDtypeStruct(shape_of(x, other, stride=stride, **static), jnp.float32)
        return jax.ffi.ffi_call(target, out)(x, other, stride=np.int64(stride))

    def batched(arguments, axes, **static):
        """Clients become groups; who is shared by all is repeated for each."""
        size = next(a.shape[axis] for a, axis in zip(arguments, axes, strict=True) if axis is not None)
        first = [_in_front(a, axis, size) for a, axis in zip(arguments, axes, strict=True)]
        groups = first[0].shape[1]
        out = primitive.bind(*(a.reshape(size * groups, *a.shape[2:]) for a in first), **static)
        return out.reshape(size, groups, *out.shape[1:]), 0

    primitive.def_abstract_eval(
        lambda x, other, **static: jax.core.ShapedArray(shape_of(x, other, **static), jnp.float32)
    )
    primitive.def_impl(jax.jit(call, static_argnames=("stride", "size")))
    mlir.register_lowering(primitive, mlir.lower_fun(call, multiple_results=False))
    batching.primitive_batchers[primitive] = batched
    return primitive


def _in_front(array: Array, axis, size: int) -> Array:
    if axis is None:
        return jnp.broadcast_to(array, (size, *array.shape))
    return jnp.moveaxis(array, axis, 0)


def _kernel_shape(x, y, *, stride, size):
    return x.shape[0], *size, x.shape[4], y.shape[4]


_convolve = _declare("convolve", _out_shape)
_kernel_gradient = _declare("kernel_gradient", _kernel_shape)

ad.defbilinear(
    _convolve,
    lambda ct, x, kernel, *, stride: _for_image(ct, kernel, stride=stride, size=x.aval.shape[2:4]),
    lambda ct, x, kernel, *, stride: _kernel_gradient.bind(x, ct, stride=stride, size=kernel.aval.shape[1:3]),
)
ad.defbilinear(
    _kernel_gradient,
    lambda ct, x, y, *, stride, size: _for_image(y, ct, stride=stride, size=x.aval.shape[2:4]),
    lambda ct, x, y, *, stride, size: _convolve.bind(x, ct, stride=stride),
)

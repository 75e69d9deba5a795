"""The compiled convolution as JAX primitives, and the broadcast of a bias.

Two bilinear maps, each the other's transpose, so that every derivative of every order, forward or reverse, is made of
the same two.
"""

import math
from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from fedjax_het._internal import kernels
from fedjax_het._internal.primitives import declare
from fedjax_het.types import Array

Pads = tuple[tuple[int, int], tuple[int, int]]
"""((top, bottom), (left, right)): rows and columns of zeros around an image; negative: cut off."""

_DIRECT = ("direct_convolve", "direct_kernel_gradient")
_SCATTER, _WINOGRAD = ("scatter_convolve",), ("winograd_convolve", "winograd_kernel_gradient")
_PADDING = (*_SCATTER, *_WINOGRAD)  # which pad as they go along
explain_missing_kernel = kernels.make_check(__file__, winograd=_WINOGRAD, direct=_DIRECT, scatter=_SCATTER)
_SIDES, _TILE = (3, 5), 4  # of kernels that Winograd's algorithm is written for, and of its tiles of the output
_MANY = 16  # channels, features and tiles from which it is the faster one; measured
_LANES, _ADDING = 16, 3  # floats in a register; products that adding to the output costs as much as; measured
_LARGE, _FEW = 1 << 15, 64  # entries of a kernel, pixels of an image: see `is_suitable`; measured


def convolve(x: Array, kernel: Array, stride: int = 1, pads: Pads = ((0, 0), (0, 0))) -> Array:
    """[n, h, w, c] with [kh, kw, c, f] -> [n, h', w', f], float32, on a CPU."""
    return _convolve.bind(x, kernel, stride=stride, pads=pads, is_turned=False)


def is_suitable(x_shape: tuple, kernel_shape: tuple, stride: int, pads: Pads) -> bool:
    """Whether these kernels are faster here than a product of patches.

    The direct one reads a kernel that no cache holds once per image, so it needs images with many pixels.
    """
    y_shape = _out_shape(x_shape, kernel_shape, stride, pads)
    is_small = math.prod(kernel_shape) < _LARGE or math.prod(y_shape[-3:-1]) >= _FEW
    return is_small or _is_winograd_faster(y_shape, kernel_shape, stride)


def _is_winograd_faster(y_shape: tuple, kernel_shape: tuple, stride: int) -> bool:
    """Whether Winograd's algorithm outweighs its transforms of every tile and of the kernel.

    It must halve the multiplications at least; tiles that stick out over a small image save few.
    """
    height, width, *channels = kernel_shape[-4:]
    if stride != 1 or height != width or height not in _SIDES or min(channels) < _MANY:
        return False
    tiles = math.prod(-(-n // _TILE) for n in y_shape[-3:-1])
    is_saving = math.prod(y_shape[-3:-1]) * height * width >= 2 * tiles * (_TILE + height - 1) ** 2
    return is_saving and y_shape[-4] * tiles >= _MANY


def _is_scatter_faster(x_shape: tuple, y_shape: tuple, kernel_shape: tuple, stride: int, pads: Pads) -> bool:
    """Whether the sum takes fewer products in the order of the image's pixels than in that of the output's.

    It leaves out the padding, and a whole row of the kernel fills the registers, not the features alone; but the
    products are added to an output in memory, which weighs more the fewer channels there are.
    """
    if stride != 1 or min(amount for pad in pads for amount in pad) < 0:
        return False
    height, width, channels, features = kernel_shape[-4:]
    lanes = _LANES // 2 if features <= _LANES // 2 else _fill(features)
    direct = math.prod(y_shape[-3:-1]) * height * width * channels * lanes
    return math.prod(x_shape[-3:-1]) * height * _fill(width * features) * (channels + _ADDING) < direct


def _fill(lanes: int) -> int:
    return -(-lanes // _LANES) * _LANES


def select_algorithm(x_shape: tuple, kernel_shape: tuple, stride: int, pads: Pads) -> str:
    """The fastest algorithm of a convolution: "winograd", "scatter" or "direct"."""
    y_shape = _out_shape(x_shape, kernel_shape, stride, pads)
    if _is_winograd_faster(y_shape, kernel_shape, stride):
        return "winograd"
    return "scatter" if _is_scatter_faster(x_shape, y_shape, kernel_shape, stride, pads) else "direct"


def _call(method: str, name: str, x: Array, other: Array, shape: tuple, stride: int, pads: Pads, **options) -> Array:
    """By the direct algorithm, which takes the image padded, where the other has no such function."""
    out = jax.ShapeDtypeStruct(shape, jnp.float32)
    if (symbol := f"{method}_{name}") in _PADDING:
        (top, _), (left, _) = pads
        return kernels.prepare_call(symbol, out)(x, other, top=np.int64(top), left=np.int64(left), **options)
    sides = [*[(0, 0, 0)] * (x.ndim - 3), *((*pad, 0) for pad in pads), (0, 0, 0)]
    padded = jax.lax.pad(x, np.zeros((), x.dtype), sides)
    return kernels.prepare_call(f"direct_{name}", out)(padded, other, stride=np.int64(stride))


def _out_shape(x_shape: tuple, kernel_shape: tuple, stride: int, pads: Pads) -> tuple:
    size = [
        (n + sum(pad) - k) // stride + 1 for n, pad, k in zip(x_shape[-3:-1], pads, kernel_shape[-4:-2], strict=True)
    ]
    return *x_shape[:-3], *size, kernel_shape[-1]


def _kernel_shape(x, y, *, stride, pads, size):
    return *x.shape[:-4], *size, x.shape[-1], y.shape[-1]


def _call_convolve(x, kernel, *, stride, pads, is_turned):
    kernel_shape, options = _oriented(kernel.shape, is_turned), {}
    shape = _out_shape(x.shape, kernel_shape, stride, pads)
    method = select_algorithm(x.shape, kernel_shape, stride, pads)
    if method == "winograd":
        options = {"is_turned": is_turned}
    elif is_turned:
        kernel = _turn(kernel)
    return _call(method, "convolve", x, kernel, shape, stride, pads, **options)


def _call_kernel_gradient(x, y, *, stride, pads, size):
    shape = _kernel_shape(x, y, stride=stride, pads=pads, size=size)
    return _call(select_algorithm(x.shape, shape, stride, pads), "kernel_gradient", x, y, shape, stride, pads)


def _turn(kernel: Array) -> Array:
    """By half a turn, and from [kh, kw, c, f] to [kh, kw, f, c]."""
    return jnp.flip(kernel, (-4, -3)).swapaxes(-2, -1)


def _oriented(shape: tuple, is_turned: bool) -> tuple:
    """[kh, kw, c, f], the shape of a kernel that may be stored turned."""
    return (*shape[:-2], shape[-1], shape[-2]) if is_turned else shape


def _for_image(y: Array, kernel: Array, *, stride: int, pads: Pads, is_turned: bool, size: tuple[int, int]) -> Array:
    """The transpose of x -> convolve(x, kernel): y with the kernel turned.

    With a stride, which kernels that are stored turned never have, it is one convolution for all pixels of x with the
    same remainders of row and column by the stride: they see the same entries of the kernel.
    """
    height, width = counts = [-(-n // stride) for n in size]
    axes = zip(y.shape[-3:-1], kernel.shape[-4:-2], [low for low, _ in pads], counts, strict=True)
    rows, columns = (list(_find_phases(*axis, stride)) for axis in axes)
    channels = _oriented(kernel.shape, is_turned)[-2]

    def convolve_phase(row: tuple, column: tuple) -> Array:
        (top, row_pads), (left, column_pads) = row, column
        part = kernel[..., top::stride, left::stride, :, :] if stride > 1 else kernel
        if 0 in part.shape:
            return jnp.zeros((*y.shape[:-3], height, width, channels), y.dtype)
        return _convolve.bind(y, part, stride=1, pads=(row_pads, column_pads), is_turned=not is_turned)

    if stride == 1:
        return convolve_phase(*rows, *columns)
    phases = [jnp.stack([convolve_phase(row, column) for column in columns], axis=-2) for row in rows]
    joined = jnp.stack(phases, axis=-4).reshape(*y.shape[:-3], height * stride, width * stride, channels)
    return joined[..., : size[0], : size[1], :]


def _find_phases(num_y: int, k: int, low: int, count: int, stride: int) -> Iterator[tuple[int, tuple[int, int]]]:
    """For each remainder along an axis, of which x has `count` pixels: the first entry of the kernel, the pads of y.

    Pixel remainder + stride u of x takes part in y[u + offset - t] by entry first + stride t of the kernel.
    """
    for remainder in range(stride):
        offset, first = divmod(remainder + low, stride)
        num_entries = -(-(k - first) // stride)
        yield first, (num_entries - 1 - offset, count + offset - num_y)


_convolve = declare(
    "convolve",
    _call_convolve,
    lambda x, kernel, stride, pads, is_turned: _out_shape(x.shape, _oriented(kernel.shape, is_turned), stride, pads),
    (4, 4),
    "stride",
    "pads",
    "is_turned",
    is_shared=True,
)
# The gradient of sum(y * convolve(x, kernel)) for a kernel of (height, width) `size`:
# [n, h, w, c] with [n, h', w', f] -> [kh, kw, c, f]; both may have an axis of groups in front.
_kernel_gradient = declare("kernel_gradient", _call_kernel_gradient, _kernel_shape, (4, 4), "stride", "pads", "size")


def _for_kernel(x: Array, y: Array, *, is_turned: bool, **settings) -> Array:
    """The transpose of kernel -> convolve(x, kernel)."""
    gradient = _kernel_gradient.bind(x, y, **settings)
    return _turn(gradient) if is_turned else gradient


ad.defbilinear(
    _convolve,
    lambda ct, x, kernel, **static: _for_image(ct, kernel, **static, size=x.aval.shape[-3:-1]),
    lambda ct, x, kernel, **static: _for_kernel(x, ct, **static, size=kernel.aval.shape[-4:-2]),
)
ad.defbilinear(
    _kernel_gradient,
    lambda ct, x, y, *, size, **static: _for_image(y, ct, **static, is_turned=False, size=x.aval.shape[-3:-1]),
    lambda ct, x, y, *, size, **static: _convolve.bind(x, ct, **static, is_turned=False),
)


def broadcast_bias(bias: Array, shape: tuple[int, ...]) -> Array:
    """[f] -> [n, h, w, f], float32, on a CPU.

    XLA's own broadcast, but for the gradient: that is summed by our kernel, from the very array that the convolution's
    gradients are made of. XLA's sum looks for an array behind the reshapes of pooling and computes all of it anew.
    """
    return _broadcast.bind(bias, shape=tuple(shape))


def _call_broadcast(bias: Array, *, shape: tuple[int, ...]) -> Array:
    return jnp.broadcast_to(bias.reshape(*bias.shape[:-1], 1, 1, 1, bias.shape[-1]), shape)


def _sum_of_pixels(y: Array) -> Array:
    """The gradient for a 1 x 1 kernel over an image of ones."""
    ones = jnp.ones((*y.shape[:-1], 1), y.dtype)
    gradient = _kernel_gradient.bind(ones, y, stride=1, pads=((0, 0), (0, 0)), size=(1, 1))
    return gradient.reshape(*y.shape[:-4], y.shape[-1])


def _batch_broadcast(arguments: tuple[Array], axes: tuple[int], *, shape: tuple[int, ...]) -> tuple[Array, int]:
    bias = jnp.moveaxis(arguments[0], axes[0], 0)
    groups = bias.reshape(-1, bias.shape[-1])
    out = _broadcast.bind(groups, shape=(len(groups), *shape[-4:]))
    return out.reshape(len(bias), *shape), 0


_broadcast = Primitive("spread")
_broadcast.def_impl(jax.jit(_call_broadcast, static_argnames="shape"))
_broadcast.def_abstract_eval(lambda bias, shape: jax.core.ShapedArray(shape, bias.dtype))
mlir.register_lowering(_broadcast, mlir.lower_fun(_call_broadcast, multiple_results=False))
batching.primitive_batchers[_broadcast] = _batch_broadcast
ad.deflinear2(_broadcast, lambda ct, bias, shape: [_sum_of_pixels(ct)])

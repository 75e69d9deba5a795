"""Implementations of convolution.

"lax" is XLA's own. On CPUs it is many times slower inside loops than outside, and rounds are loops. With vectorized
clients it becomes a grouped convolution, which is known to be slow on GPUs.
"im2col" copies the windows of the image side by side and multiplies once.
"native" runs our own kernels, compiled once per machine (from C++ in _native): float32, on CPUs, several times as
fast as im2col. Kernels of 3 x 3 and 5 x 5 with at least 16 channels and features use Winograd's algorithm, which is
two times (3 x 3) and three times (5 x 5) as fast as direct convolution. Compared to float64, its errors are 5e-7 to
1e-6 (3 x 3) and 2e-6 to 4e-6 (5 x 5) of the root mean square, those of direct convolution 2e-7 to 4e-7. For large
kernels and few pixels it multiplies like im2col, except for 3 x 3 on images of 2 x 2 pixels, which need a quarter of
the products, with errors of 3e-7 to 8e-7.
"auto" is native on a CPU, or im2col if native is not available. On accelerators it is lax; with layout "auto", lax and
im2col are timed there.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial

import jax
import jax.numpy as jnp
from jax import lax
from jax.typing import DTypeLike

from fedjax_het._internal.keys import make_key
from fedjax_het._internal.target_platform import target_platform
from fedjax_het.errors import InputError, nearest
from fedjax_het.models._dense import add_bias
from fedjax_het.models._model import output_shapes
from fedjax_het.models._native import convolution
from fedjax_het.types import Array, Context, Model, Named, Params, Variables

Pads = tuple[tuple[int, int], tuple[int, int]]
# With few channels the copies are narrow; joining those of a row first is faster (measured for 3, 6, 32 channels).
_FEW = 16
_TIMED = ("lax", "im2col")  # on accelerators; the first is the meaning of "auto" without timing
_auto: ContextVar[Callable[[], str] | None] = ContextVar("implementation for auto", default=None)


def convolve(
    name: str, x: Array, kernel: Array, strides: tuple[int, int], pads: Pads, bias: Array | None = None
) -> Array:
    """[n, h, w, c], [kh, kw, c, f] and optionally [f] -> [n, h', w', f].

    Raises:
        InputError: The name is unknown, or "native" is not available.
    """
    if name == "auto":
        choose = _auto.get()
        name = choose() if choose else select_conv_impl(x.dtype, strides)
    elif name == "native" and (reason := _explain_missing_native(x.dtype, strides)):
        raise InputError(f"conv: 'native' is not available: {reason}. Use conv='auto'.")
    check_conv_impl(name)
    y = _IMPLS[name](x, kernel, strides, pads)
    if bias is None:
        return y
    return y + convolution.broadcast_bias(bias, y.shape) if name == "native" else add_bias(y, bias)


@contextmanager
def setting_auto(choose: Callable[[], str]) -> Iterator[None]:
    """In this context, compute convolutions with conv="auto" by the implementation that `choose` returns."""
    token = _auto.set(choose)
    try:
        yield
    finally:
        _auto.reset(token)


def with_conv(name: str) -> Callable[[Model], Model]:
    """Use the implementation `name` for convolutions that a model leaves to "auto"."""

    def adapt(model: Model) -> Model:
        def encode(variables: Variables, inputs: Array, context: Context) -> tuple[tuple[Array, Named], Variables]:
            with setting_auto(lambda: name):
                return model.encode(variables, inputs, context)

        def classify(params: Params, features: Array) -> Array:
            with setting_auto(lambda: name):
                return model.classify(params, features)

        return model._replace(encode=encode, classify=classify)

    return adapt


def find_conv_candidates(model: Model, inputs: Array | jax.ShapeDtypeStruct) -> tuple[str, ...]:
    """List the implementations to time on an accelerator.

    Args:
        model: The model.
        inputs: A batch, or its shape.

    Returns:
        Their names; () on a CPU, and for models without convolutions left to "auto".
    """
    found = []
    if target_platform() != "cpu":
        with setting_auto(lambda: found.append(_TIMED[0]) or _TIMED[0]):
            output_shapes(model, jax.eval_shape(model.init, make_key(0), inputs), inputs)
    return _TIMED if found else ()


def select_conv_impl(dtype: DTypeLike = jnp.float32, strides: tuple[int, int] = (1, 1)) -> str:
    """Choose the implementation for "auto" without timing."""
    if target_platform() != "cpu":
        return _TIMED[0]
    return "im2col" if _explain_missing_native(dtype, strides) else "native"


def check_conv_impl(name: str) -> None:
    if name not in (known := ("auto", *_IMPLS)):
        raise InputError(f"conv: no implementation '{name}'. {nearest(str(name), known)}")


def _explain_missing_native(dtype: DTypeLike, strides: tuple[int, int]) -> str | None:
    if jnp.dtype(dtype) != jnp.float32:
        return f"it computes in float32, not in {jnp.dtype(dtype)}"
    if strides[0] != strides[1]:
        return f"its strides are equal, unlike {strides}"
    return convolution.explain_missing_kernel()


def _with_lax(x: Array, kernel: Array, strides: tuple[int, int], pads: Pads) -> Array:
    return lax.conv_general_dilated(x, kernel, strides, pads, dimension_numbers=("NHWC", "HWIO", "NHWC"))


def _with_im2col(x: Array, kernel: Array, strides: tuple[int, int], pads: Pads) -> Array:
    (height, width, channels, features), dtype = kernel.shape, x.dtype
    x = jnp.pad(x.astype(_sum_dtype(dtype)), ((0, 0), *pads, (0, 0)))
    rows = partial(_slices, axis=1, size=height, stride=strides[0])
    columns = partial(_slices, axis=2, size=width, stride=strides[1])
    if channels < _FEW:
        windows = rows(jnp.concatenate(columns(x), axis=-1))
    else:
        windows = [window for row in rows(x) for window in columns(row)]
    return jnp.concatenate(windows, axis=-1).astype(dtype) @ kernel.reshape(height * width * channels, features)


def _sum_dtype(dtype: DTypeLike) -> DTypeLike:
    """What products in bfloat16 are summed in. As the dtype of a padded image it is also that in which the gradients of
    all windows are summed."""
    return jnp.promote_types(dtype, jnp.float32)


def _slices(x: Array, axis: int, size: int, stride: int) -> list[Array]:
    """The image as each entry of a kernel of that size sees it along one axis."""
    last = x.shape[axis] - size
    return [lax.slice_in_dim(x, i, i + last + 1, stride, axis) for i in range(size)]


def _with_native(x: Array, kernel: Array, strides: tuple[int, int], pads: Pads) -> Array:
    stride = strides[0]
    if kernel.shape[:2] == (1, 1) and pads == ((0, 0), (0, 0)):
        # Pixels that are stepped over are left out beforehand, so that no gradient runs over them.
        x, stride = x[:, ::stride, ::stride], 1
    if convolution.is_suitable(x.shape, kernel.shape, stride, pads):
        return convolution.convolve(x, kernel, stride, pads)
    if (*x.shape[1:3], *kernel.shape[:2], stride, pads) == (2, 2, 3, 3, 1, ((1, 1), (1, 1))):
        return _convolve_two_by_two(x, kernel)
    return _with_im2col(x, kernel, (stride, stride), pads)


def _convolve_two_by_two(x: Array, kernel: Array) -> Array:
    """[n, 2, 2, c], [3, 3, c, f] -> [n, 2, 2, f], padded by one: 9 products of matrices in place of 36.

    Along one axis y_0 = k_1 x_0 + k_2 x_1 and y_1 = k_0 x_0 + k_1 x_1, which takes three products:
    k_1 (x_0 + x_1), (k_2 - k_1) x_1 and (k_0 - k_1) x_0.
    """
    images = _map_both_axes(lambda x0, x1: (x0 + x1, x1, x0), _split(x, 2, axis=1))
    kernels = _map_both_axes(lambda k0, k1, k2: (k1, k2 - k1, k0 - k1), _split(kernel, 3, axis=0))
    products = [[a @ b for a, b in zip(*rows, strict=True)] for rows in zip(images, kernels, strict=True)]
    rows = _map_both_axes(lambda shared, second, first: (shared + second, shared + first), products)
    return jnp.stack([pixel for row in rows for pixel in row], axis=1).reshape(len(x), 2, 2, kernel.shape[-1])


def _split(array: Array, size: int, axis: int) -> list[list[Array]]:
    """The `size` x `size` parts of two adjacent axes, as rows.

    Split in one go, whose gradient is one concatenation; that of each index is an array of zeros but for one part.
    """
    rest = array.shape[:axis] + array.shape[axis + 2 :]
    parts = lax.split(array.reshape(*rest[:axis], size**2, *rest[axis:]), [1] * size**2, axis)
    return [[part.reshape(rest) for part in parts[i * size :][:size]] for i in range(size)]


def _map_both_axes(combine: Callable[..., Sequence[Array]], rows: Sequence[Sequence[Array]]) -> list[Sequence[Array]]:
    """Combine the entries of every column, then those of every row."""
    columns = [combine(*column) for column in zip(*rows, strict=True)]
    return [combine(*row) for row in zip(*columns, strict=True)]


_IMPLS = {"lax": _with_lax, "im2col": _with_im2col, "native": _with_native}

"""Products of matrices with few columns as JAX primitives: float32, on a CPU."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.extend.core import Primitive
from jax.interpreters import ad

from fedjax_het._internal import kernels
from fedjax_het._internal.primitives import declare
from fedjax_het.types import Array

_WIDTHS = range(4, 129)
_MAX_SIZE = 2**24  # XLA divides larger products among threads
_SYMBOLS = ("narrow_product", "narrow_kernel_gradient")
explain_missing_kernel = kernels.make_check(__file__, narrow=_SYMBOLS)


def is_faster(x: Array, kernel: Array) -> bool:
    """Whether `multiply` is faster than XLA (measured on one core, with the gradient for the kernel)."""
    return kernel.shape[1] in _WIDTHS and 0 < x.size * kernel.shape[1] <= _MAX_SIZE


def multiply(x: Array, kernel: Array) -> Array:
    """x [n, i] times a kernel [i, o] of 4 columns or more."""
    return _product.bind(x, kernel)


def _declare(symbol: str, shape_of: Callable[..., tuple[int, ...]], xla: Callable[..., Array]) -> Primitive:
    def call(x: Array, other: Array) -> Array:
        return kernels.prepare_call(symbol, jax.ShapeDtypeStruct(shape_of(x, other), jnp.float32))(x, other)

    return declare(symbol, call, shape_of, (2, 2), is_shared=symbol == "narrow_product", xla=xla)


_product = _declare(_SYMBOLS[0], lambda x, kernel: (*x.shape[:-1], kernel.shape[-1]), jnp.matmul)
_gradient = _declare(
    _SYMBOLS[1], lambda x, y: (*x.shape[:-2], x.shape[-1], y.shape[-1]), lambda x, y: x.swapaxes(-2, -1) @ y
)


def _for_x(y: Array, kernel: Array) -> Array:
    return y @ kernel.swapaxes(-2, -1)


ad.defbilinear(_product, lambda ct, x, kernel: _for_x(ct, kernel), lambda ct, x, kernel: _gradient.bind(x, ct))
ad.defbilinear(_gradient, lambda ct, x, y: _for_x(y, ct), lambda ct, x, y: _product.bind(x, ct))

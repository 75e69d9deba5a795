"""Keys of random numbers, of a named generator: Threefry 2x32, as JAX has it."""

import math
from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.extend import random

from fedjax_het._internal import kernels
from fedjax_het._internal.primitives import declare

_JAX = random.threefry_prng_impl
_SYMBOLS = ("threefry_words", "threefry_bits", "threefry_fold", "sort_by_bits")
explain_missing_kernel = kernels.make_check(__file__, threefry=_SYMBOLS)


def make_key(seed: int | Array | np.ndarray) -> Array:
    """Make a key of this generator, so that `JAX_DEFAULT_PRNG_IMPL` doesn't change results.

    Args:
        seed: An integer.

    Returns:
        A typed key. Its random numbers are those of JAX's threefry2x32.
    """
    return jax.random.key(seed, impl=GENERATOR)


def _fold_in(key: Array, data: int | Array) -> Array:
    if explain_missing_kernel():
        return _JAX.fold_in(key, jnp.asarray(data))
    return _words.bind(key, jnp.asarray(data).astype("uint32"), count=1)[0]


def _split(key: Array, shape: tuple[int, ...]) -> Array:
    if explain_missing_kernel():
        return _JAX.split(key, shape)
    return _words.bind(key, jnp.uint32(0), count=math.prod(shape)).reshape(*shape, 2)


def _draw_bits(key: Array, bit_width: int, shape: tuple[int, ...]) -> Array:
    if explain_missing_kernel() or bit_width > 32:
        return _JAX.random_bits(key, bit_width, shape)
    bits = _bits.bind(key, jnp.uint32(0), count=math.prod(shape))
    return bits.reshape(shape).astype(f"uint{bit_width}")


def _words_shape(key: Array, start: Array, *, count: int) -> tuple[int, ...]:
    return *start.shape, count, 2


def _bits_shape(key: Array, start: Array, *, count: int) -> tuple[int, ...]:
    return *start.shape, count


def call_kernel(
    symbol: str, shape_of: Callable[..., tuple[int, ...]], dtype: str, *arrays: Array, **settings: int
) -> Array:
    """Call a function of threefry.cc, whose result has the shape that `shape_of` finds from the same arguments."""
    return kernels.prepare_call(symbol, jax.ShapeDtypeStruct(shape_of(*arrays, **settings), dtype))(*arrays)


# Hashes of `count` numbers from a first one: XLA compiles a loop of several kernels for each instead.
_words, _bits = (
    declare(symbol, partial(call_kernel, symbol, shape_of, "uint32"), shape_of, (1, 0), "count", dtype=jnp.uint32)
    for symbol, shape_of in zip(_SYMBOLS[:2], (_words_shape, _bits_shape), strict=True)
)

GENERATOR = random.define_prng_impl(
    key_shape=_JAX.key_shape,
    seed=_JAX.seed,
    split=_split,
    random_bits=_draw_bits,
    fold_in=_fold_in,
    name="fedjax_het",
    tag="fedjax_het",
)

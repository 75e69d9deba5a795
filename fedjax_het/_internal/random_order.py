"""Random orders of examples and clients that do not depend on padding."""

from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Bool, UInt32

from fedjax_het._internal import keys
from fedjax_het._internal.primitives import declare
from fedjax_het._internal.target_platform import target_platform
from fedjax_het.types import Array, Key

_PLACE_BITS = 30
_FEW = 64  # numbers, which a comparison sorts in less than 0.1 ms


def draw_bits(key: Key, numbers: Array) -> UInt32[Array, "n"]:
    """Draw 32 bits for each number: a function of the key and the number."""
    is_threefry = jax.random.key_impl(key) in (keys.GENERATOR, "threefry2x32")
    if is_threefry and not keys.explain_missing_kernel():
        return _fold.bind(jax.random.key_data(key), jnp.asarray(numbers).astype("uint32"))
    return jax.vmap(lambda number: jax.random.bits(jax.random.fold_in(key, number), (), "uint32"))(numbers)


def sort_by_bits(bits: UInt32[Array, "n"], is_there: Bool[Array, "n"]) -> Array:
    """[n]: the places in the order of their bits, in their own order if equal; those that are not there come last."""
    if not keys.explain_missing_kernel():
        return _sort.bind(bits, is_there)
    bits = jnp.where(is_there, bits, 0)
    if target_platform() != "cpu" or not _FEW < len(bits) < 1 << _PLACE_BITS:
        return jnp.lexsort((bits, ~is_there))
    # On CPUs, XLA sorts one array of integers five times as fast as several arrays by a comparison.
    with jax.enable_x64(True):
        absent, bits = (values.astype("int64") for values in (~is_there, bits))
        places = jnp.arange(len(bits), dtype="int64")
        sorted_values = jnp.sort(absent << (32 + _PLACE_BITS) | bits << _PLACE_BITS | places, stable=False)
        return (sorted_values & (2**_PLACE_BITS - 1)).astype("int32")


def _last_shape(first: Array, last: Array) -> tuple[int, ...]:
    return last.shape


_fold, _sort = (
    declare(symbol, partial(keys.call_kernel, symbol, _last_shape, dtype), _last_shape, (1, 1), dtype=dtype)
    for symbol, dtype in (("threefry_fold", "uint32"), ("sort_by_bits", "int32"))
)

"""The compiled inner products as JAX sees them."""

import functools
from pathlib import Path

import jax
import jax.numpy as jnp

from fedjax_het._internal import kernels
from fedjax_het.types import Array

SOURCE = Path(__file__).with_name("gram.cc")
_TARGETS = {"float32": "fedjax_het_gram_float32", "bfloat16": "fedjax_het_gram_bfloat16"}


@functools.cache
def why_not() -> str | None:
    """None where the kernels can be used, else the reason that they cannot. The first call may compile them."""
    if jax.default_backend() != "cpu":
        return f"they are for CPUs, and this is a {jax.default_backend()}"
    return kernels.register(SOURCE, _TARGETS)


def gram(rows: Array) -> Array:
    """K_ij = <x_i, x_j>, [..., m, n] -> [..., m, m] in float64, with float64 at hand.

    rows: float32, or bfloat16 as its bits, uint16.
    """
    target = _TARGETS["float32" if rows.dtype == jnp.float32 else "bfloat16"]
    out = jax.ShapeDtypeStruct((*rows.shape[:-1], rows.shape[-2]), jnp.float64)
    return jax.ffi.ffi_call(target, out, vmap_method="broadcast_all")(rows)

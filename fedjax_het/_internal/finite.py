"""The check for finite numbers in several arrays, as one call: XLA compiles up to three loops for each array."""

import jax
import jax.numpy as jnp
from jax import Array

from fedjax_het._internal import kernels
from fedjax_het._internal.primitives import declare_unbatched

explain_missing_kernel = kernels.make_check(__file__, finite=("all_finite",))


def all_finite(arrays: list[Array]) -> Array:
    """[] bool: whether all numbers of floating arrays are finite."""
    if not arrays or any(x.dtype != jnp.float32 for x in arrays) or explain_missing_kernel():
        return _find_by_xla(*arrays)[0]
    return _all_finite.bind(*arrays)[0]


def _find_by_xla(*arrays: Array) -> list[Array]:
    flags = jnp.array([jnp.all(jnp.isfinite(x)) for x in arrays] or [True])
    # Without the barrier XLA copies all flags into every kernel that uses the result: their number squared is compiled.
    return [jnp.all(jax.lax.optimization_barrier(flags))]


_RESULTS = [jax.ShapeDtypeStruct((), jnp.dtype(bool))]
_all_finite = declare_unbatched(
    "all_finite", lambda *x: kernels.prepare_call("all_finite", _RESULTS)(*x), lambda *_: _RESULTS, _find_by_xla
)

"""Sparsification of updates: the largest entries, or entries at random."""

import jax
import jax.numpy as jnp

from fedjax_het.algorithm import Stage
from fedjax_het.types import Array, Key
from fedjax_het.uplink._clipping import Collections
from fedjax_het.uplink._compression import Compressor, Feedback, Scope, compression_stage
from fedjax_het.validation import PositiveFraction, validate_arguments


@validate_arguments
def top_k(
    fraction: PositiveFraction = 0.01,
    scope: Scope = "model",
    feedback: Feedback = "none",
    collections: Collections = "params",
) -> Stage:
    """Send the k entries of largest magnitude; the others are zero.

    Biased: without feedback the other entries are lost. Ties are broken in favor of the first entry. Bits for d
    entries: k (32 + log2 d rounded up), for values and indices.

    Args:
        fraction: k / d; k is rounded, and at least 1. Typically 0.001 to 0.1.
        scope: Whether each tensor ("tensor") or the whole update ("model") is one message.
        feedback: Error feedback, see `compression_stage`; typically "classic".
        collections: "params" or "all".

    References:
        Stich et al., Sparsified SGD with Memory, NeurIPS 2018. arXiv:1809.07599
    """

    def decode(vector: Array, own: Key, common: Key) -> Array:
        return keep_largest(vector, count_kept(vector.size, fraction))

    def count_bits(size: int) -> float:
        return count_kept(size, fraction) * (32.0 + (size - 1).bit_length())

    return compression_stage(Compressor(decode, count_bits), scope, feedback, collections)


@validate_arguments
def random_k(
    fraction: PositiveFraction = 0.01,
    scope: Scope = "model",
    feedback: Feedback = "none",
    collections: Collections = "params",
) -> Stage:
    """Send k randomly chosen entries times d / k; the others are zero.

    Unbiased; with feedback the entries are not rescaled. The indices are drawn without replacement, per client and
    round, from a key that the server knows. Bits for d entries: 32 k.

    Args:
        fraction: k / d; k is rounded, and at least 1.
        scope: Whether each tensor ("tensor") or the whole update ("model") is one message.
        feedback: Error feedback, see `compression_stage`.
        collections: "params" or "all".

    References:
        Stich et al., Sparsified SGD with Memory, NeurIPS 2018. arXiv:1809.07599
    """

    def decode(vector: Array, own: Key, common: Key) -> Array:
        kept = count_kept(vector.size, fraction)
        _, places = jax.lax.top_k(jax.random.uniform(own, vector.shape, "float32"), kept)
        return keep_places(vector, places) * (vector.size / kept)

    compressor = Compressor(
        decode,
        bits=lambda size: 32.0 * count_kept(size, fraction),
        variance=lambda size: size / count_kept(size, fraction) - 1,
    )
    return compression_stage(compressor, scope, feedback, collections)


def count_kept(size: int, fraction: float) -> int:
    """The number of entries sent per message."""
    return max(1, round(fraction * size))


def keep_largest(vector: Array, count: int) -> Array:
    """The entries of largest magnitude, and zeros elsewhere."""
    return keep_places(vector, jax.lax.top_k(jnp.abs(vector), count)[1])


def keep_places(vector: Array, places: Array) -> Array:
    """The entries at the given indices, and zeros elsewhere."""
    return jnp.zeros_like(vector).at[places].set(vector[places])

"""Quantization of updates: uniform levels with optional random rotation, DRIVE, TernGrad and QSGD."""

import functools
import math
from typing import Annotated, Literal

import jax
import jax.numpy as jnp
import scipy  # imports its subpackages lazily

from fedjax_het import tree
from fedjax_het.algorithm import Stage
from fedjax_het.types import Array, HostArray, Key
from fedjax_het.uplink._clipping import Collections
from fedjax_het.uplink._compression import Compressor, Feedback, Scope, compression_stage
from fedjax_het.validation import Positive, Range, validate_arguments

Levels = Annotated[int, Range(2, 2**16, is_whole=True)]
Steps = Annotated[int, Range(1, 2**16, is_whole=True)]
Scale = Literal["unbiased", "min_mse"]
_FACTOR = 64  # size of the largest Hadamard matrix used as a factor


# ---- stages ----------------------------------------------------------------------------------------------------------
@validate_arguments
def quantize(
    levels: Levels = 16,
    rotated: bool = False,
    scope: Scope = "tensor",
    feedback: Feedback = "none",
    collections: Collections = "params",
) -> Stage:
    """Stochastically round each entry to one of L levels between the minimum and maximum of its message. Unbiased.

        x = (u - min u) / (max u - min u) (L - 1);   sent: floor(x) + (1 with probability x - floor(x), else 0)

    With a rotation, R u is rounded instead of u, R = H diag(+-1) / sqrt(d), where H is the Hadamard matrix and the
    signs are drawn once per round for all clients. Entries of R u have similar magnitudes, so levels are closer. A
    message of equal entries is exact. Bits for d entries: d log2 L + 64; with rotation, d is the next power of two.

    Args:
        levels: L; typically 2 to 256.
        rotated: Whether to rotate.
        scope: Whether each tensor ("tensor") or the whole update ("model") is one message.
        feedback: Error feedback, see `compression_stage`; with few levels (for example, less than 8) errors exceed the
            updates, and the memory grows.
        collections: "params" or "all".

    References:
        Suresh et al., Distributed Mean Estimation with Limited Communication, ICML 2017. arXiv:1611.00429
    """

    def decode(vector: Array, own: Key, common: Key) -> Array:
        signs = draw_signs(common, vector) if rotated else None
        uniform = _draw(own, vector if signs is None else signs)
        if signs is None:
            return round_uniformly(vector, uniform, levels)
        return rotate_back(round_uniformly(rotate(vector, signs), uniform, levels), signs, vector.size)

    size_sent = padded_size if rotated else lambda size: size
    compressor = Compressor(decode, lambda size: size_sent(size) * math.log2(levels) + 64)
    return compression_stage(compressor, scope, feedback, collections)


@validate_arguments
def drive(
    scale: Scale = "unbiased",
    scope: Scope = "tensor",
    feedback: Feedback = "none",
    collections: Collections = "params",
) -> Stage:
    """Send the signs of a rotated message and a scale (DRIVE).

        sent: R^-1 (S sign(R u)),   S = |R u|_2^2 / |R u|_1, or |R u|_1 / d

    with a rotation as in `quantize`, drawn per client and round from a key that the server knows. Bits for d entries:
    32 + the next power of two of d.

    Args:
        scale: "unbiased" (the first S; the mean over rotations is nearly u), for means over many clients; "min_mse"
            (the second S), which has a smaller error, for error feedback.
        scope: Whether each tensor ("tensor") or the whole update ("model", as in the paper) is one message.
        feedback: Error feedback, see `compression_stage`.
        collections: "params" or "all".

    References:
        Vargaftik et al., DRIVE: One-bit Distributed Mean Estimation, NeurIPS 2021. arXiv:2105.08339
    """

    def decode(vector: Array, own: Key, common: Key) -> Array:
        signs = draw_signs(own, vector)
        return rotate_back(send_signs(rotate(vector, signs), scale), signs, vector.size)

    return compression_stage(Compressor(decode, lambda size: padded_size(size) + 32.0), scope, feedback, collections)


@validate_arguments
def terngrad(
    clip_at: Positive | None = 2.5,
    scope: Scope = "tensor",
    feedback: Feedback = "none",
    collections: Collections = "params",
) -> Stage:
    """Send -s, 0 or s for each entry, where s is the largest magnitude in the message (TernGrad).

        v = u clipped to +- c std(u);   sent: s sign(v) with probability |v| / s, else 0

    Unbiased except for the clipping. The standard deviation is centered, as in FedJAX: it is 0 for equal entries, which
    are then sent as zeros, unless c is None. Bits for d entries: d log2 3 + 32.

    Args:
        clip_at: c. None: no clipping.
        scope: Whether each tensor ("tensor") or the whole update ("model") is one message.
        feedback: Error feedback, see `compression_stage`; without clipping errors exceed the updates, and the memory
            grows.
        collections: "params" or "all".

    References:
        Wen et al., TernGrad: Ternary Gradients to Reduce Communication in Distributed Deep Learning, NeurIPS 2017.
    """

    def decode(vector: Array, own: Key, common: Key) -> Array:
        return round_to_ternary(vector, _draw(own, vector), clip_at)

    return compression_stage(Compressor(decode, lambda size: size * math.log2(3) + 32), scope, feedback, collections)


@validate_arguments
def qsgd(
    steps: Steps = 4,
    scope: Scope = "tensor",
    feedback: Feedback = "none",
    collections: Collections = "params",
) -> Stage:
    """Stochastically round each entry to a multiple of |u| / s, the message norm over the number of steps (QSGD).

        x = s |u_i| / |u|;   sent: |u| sign(u_i) / s (floor(x) + (1 with probability x - floor(x), else 0))

    Unbiased, with error at most w |u|^2, w = min(d / s^2, sqrt(d) / s); with feedback the message is divided by 1 + w.
    Bits for d entries: 32 + d (1 + log2(s + 1), rounded up).

    Args:
        steps: s.
        scope: Whether each tensor ("tensor") or the whole update ("model") is one message.
        feedback: Error feedback, see `compression_stage`.
        collections: "params" or "all".

    References:
        Alistarh et al., QSGD: Communication-Efficient SGD via Gradient Quantization and Encoding, NeurIPS 2017.
    """

    def decode(vector: Array, own: Key, common: Key) -> Array:
        return round_by_norm(vector, _draw(own, vector), steps)

    compressor = Compressor(
        decode,
        bits=lambda size: 32.0 + size * (1 + int(steps).bit_length()),
        variance=lambda size: min(size / steps**2, size**0.5 / steps),
    )
    return compression_stage(compressor, scope, feedback, collections)


# ---- rules, given their draws ----------------------------------------------------------------------------------------
def round_uniformly(vector: Array, uniform: Array, levels: int) -> Array:
    """Round to levels between the smallest and largest entry; up if the uniform draw is below the fraction."""
    low = jnp.min(vector)
    span = jnp.max(vector) - low
    level = _round_up((vector - low) / tree.positive_or_one(span) * (levels - 1), uniform)
    return low + level / (levels - 1) * span


def send_signs(rotated: Array, scale: Scale) -> Array:
    """S sign(x); zeros if all entries are zero. Other zeros count as positive, since one bit has two values."""
    total = jnp.sum(jnp.abs(rotated))
    factor = total / rotated.size if scale == "min_mse" else jnp.sum(rotated**2) / tree.positive_or_one(total)
    return jnp.where(rotated >= 0, factor, -factor)


def round_to_ternary(vector: Array, uniform: Array, clip_at: float | None) -> Array:
    """s sign(x) if the uniform draw is below |x| / s, else zero; s is the largest magnitude."""
    if clip_at is not None:
        bound = clip_at * jnp.std(vector)
        vector = jnp.clip(vector, -bound, bound)
    largest = jnp.max(jnp.abs(vector))
    return jnp.where(uniform < jnp.abs(vector) / tree.positive_or_one(largest), largest, 0) * jnp.sign(vector)


def round_by_norm(vector: Array, uniform: Array, steps: int) -> Array:
    """Round magnitudes to multiples of norm / steps; up if the uniform draw is below the fraction."""
    norm = tree.norm(vector)
    level = _round_up(steps * jnp.abs(vector) / tree.positive_or_one(norm), uniform)
    return norm * jnp.sign(vector) * level / steps


def _round_up(values: Array, uniform: Array) -> Array:
    lower = jnp.floor(values)
    return lower + (uniform < values - lower)


def _draw(key: Key, like: Array) -> Array:
    return jax.random.uniform(key, like.shape, like.dtype)


# ---- random rotations ------------------------------------------------------------------------------------------------
def padded_size(size: int) -> int:
    """The next power of two."""
    return 1 << (size - 1).bit_length()


def draw_signs(key: Key, vector: Array) -> Array:
    """Draw the signs of a rotation, one per entry of the padded vector."""
    uniform = jax.random.uniform(key, (padded_size(vector.size),), vector.dtype)
    return jnp.where(uniform < 0.5, 1, -1).astype(vector.dtype)


def rotate(vector: Array, signs: Array) -> Array:
    """H (signs * x) / sqrt(d) of a vector padded with zeros to length d. Norm-preserving."""
    return _transform(jnp.pad(vector, (0, signs.size - vector.size)) * signs)


def rotate_back(rotated: Array, signs: Array, size: int) -> Array:
    """The inverse of `rotate`, without the padding."""
    return (_transform(rotated) * signs)[:size]


def _transform(vector: Array) -> Array:
    """H x / sqrt(d), the Walsh-Hadamard transform.

    H of size d = 2^p is a Kronecker product of small Hadamard matrices. Each acts on the last axis of the reshaped
    vector and moves it to the front, which restores the order of the axes.
    """
    values, rest = vector, vector.size
    while rest > 1:
        size = min(rest, _FACTOR)
        rest //= size
        matrix = jnp.asarray(_hadamard(size), vector.dtype)
        values = jnp.tensordot(matrix, values.reshape(-1, size), (1, 1), precision=jax.lax.Precision.HIGHEST)
    return values.ravel() / vector.size**0.5


@functools.cache
def _hadamard(size: int) -> HostArray:
    return scipy.linalg.hadamard(size)

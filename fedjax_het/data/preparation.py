"""From examples as stored to inputs as models take them; it runs inside the compiled step."""

from collections.abc import Callable

import jax.numpy as jnp
import numpy as np

from fedjax_het.types import Array

_CHUNK = 64  # examples that are float64 at one time


def plain() -> Callable[[Array], Array]:
    """uint8 images become float32 in 0..1; floating inputs become float32 and keep their values."""

    def prepare(inputs: Array) -> Array:
        scale = 255.0 if inputs.dtype == jnp.uint8 else 1.0
        return inputs.astype(jnp.float32) / scale

    return prepare


def standardised(inputs: np.ndarray, positions: np.ndarray) -> Callable[[Array], Array]:
    """`plain`, then (x - mean) / deviation for each channel (last axis), both of the examples at `positions`.

    A channel that never varies is only centred.
    """
    mean, deviation = moments(inputs, positions)
    mean, deviation = mean.astype(np.float32), np.where(deviation > 0, deviation, 1.0).astype(np.float32)
    unit = plain()

    def prepare(inputs: Array) -> Array:
        return (unit(inputs) - mean) / deviation

    return prepare


def moments(inputs: np.ndarray, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """([channel] mean, [channel] deviation) of inputs[positions] as `plain` gives them, in float64."""
    mean = _mean(inputs, positions, lambda x: x)
    variance = _mean(inputs, positions, lambda x: np.square(x - mean))
    return mean, np.sqrt(variance)


def _mean(inputs: np.ndarray, positions: np.ndarray, function: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    scale = 255.0 if inputs.dtype == np.uint8 else 1.0
    total, num = np.zeros(inputs.shape[-1]), 0
    for start in range(0, len(positions), _CHUNK):
        pixels = inputs[positions[start : start + _CHUNK]].reshape(-1, inputs.shape[-1]) / scale
        total += function(pixels.astype(np.float64)).sum(axis=0)
        num += len(pixels)
    return total / max(num, 1)

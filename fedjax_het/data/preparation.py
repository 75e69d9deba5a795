"""Conversion of stored examples to model inputs, inside the compiled step."""

from collections.abc import Callable
from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np

from fedjax_het.data.augmentation import Augmentation
from fedjax_het.labels import are_tokens
from fedjax_het.types import Array, Key

_CHUNK = 64  # examples converted to float64 at a time


@dataclass(frozen=True, eq=False)
class Preparation:
    """A function from stored inputs to model inputs: float32, or tokens as int32.

    uint8 images are divided by 255, and augmented in training. Then each channel (last axis) is standardized,
    (x - mean) / deviation; constant channels are only centered.

    Args:
        moments: ([channel] mean, [channel] deviation), see `moments`; None: inputs are not standardized.
        augment: The augmentation; None: training inputs are not augmented.
        are_moments_public: Whether the moments are constants independent of the clients' examples. Otherwise they
            reveal information about clients that differential privacy of updates does not cover.
        is_applied: Whether the stored inputs have been prepared already, see `fedjax_het.cache_features`.
    """

    moments: tuple[np.ndarray, np.ndarray] | None = None
    augment: Augmentation | None = None
    are_moments_public: bool = False
    is_applied: bool = False

    def __call__(self, inputs: Array) -> Array:
        """Prepare inputs [batch, ...] for evaluation."""
        return self._standardize(_to_unit_range(inputs))

    def for_training(self, key: Key, inputs: Array, labels: Array) -> tuple[Array, Array]:
        """Prepare a batch for training: (inputs, labels), both augmented."""
        inputs = _to_unit_range(inputs)
        if self.augment is not None:
            inputs, labels = self.augment(key, inputs, labels)
        return self._standardize(inputs), labels

    def _standardize(self, inputs: Array) -> Array:
        if self.moments is None or self.is_applied:
            return inputs
        mean, deviation = self.moments
        divisor = np.where(deviation > 0, deviation, 1.0).astype(np.float32)
        return (inputs - mean.astype(np.float32)) / divisor


def _to_unit_range(inputs: Array) -> Array:
    """uint8 images in 0..1, other numbers as float32; tokens stay integers."""
    if are_tokens(inputs):
        return inputs.astype(jnp.int32)
    scale = 255.0 if inputs.dtype == jnp.uint8 else 1.0
    return inputs.astype(jnp.float32) / scale


def has_means_of_both_signs(prepare: Preparation, inputs: np.ndarray, positions: np.ndarray) -> bool:
    """Whether a channel mean of the prepared images inputs[positions] is positive in some and negative in others.

    Always true for standardized images, never for other uint8 images; float images are examined.
    """
    if prepare.moments is not None or inputs.dtype == np.uint8:
        return prepare.moments is not None
    is_above = is_below = np.zeros(inputs.shape[-1], bool)
    for start in range(0, len(positions), _CHUNK):
        images = inputs[positions[start : start + _CHUNK]]
        means = images.astype(np.float64).mean(axis=tuple(range(1, images.ndim - 1)))
        is_above, is_below = is_above | (means > 0).any(axis=0), is_below | (means < 0).any(axis=0)
        if (is_above & is_below).any():
            return True
    return False


def moments(inputs: np.ndarray, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """([channel] mean, [channel] deviation) of inputs[positions], uint8 divided by 255, in float64."""
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

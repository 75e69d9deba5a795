"""From examples as stored to inputs as models take them; it runs inside the compiled step."""

from collections.abc import Callable
from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np

from fedjax_het.data.augmentation import Augmentation
from fedjax_het.types import Array, Key

_CHUNK = 64  # examples that are float64 at one time


@dataclass(frozen=True, eq=False)
class Preparation:
    """uint8 images become float32 in 0..1, floating inputs float32; then, where they are wanted, augmentation, in
    training alone, and (x - mean) / deviation a channel (last axis). A channel that never varies is only centred.

    moments: ([channel] mean, [channel] deviation), see `moments`.
    """

    moments: tuple[np.ndarray, np.ndarray] | None = None
    augment: Augmentation | None = None

    def __call__(self, inputs: Array) -> Array:
        """[batch, ...] as stored -> as models take them."""
        return self._standardised(_to_unit_range(inputs))

    def for_training(self, key: Key, inputs: Array, labels: Array) -> tuple[Array, Array]:
        """The same of a training batch, augmented."""
        inputs = _to_unit_range(inputs)
        if self.augment is not None:
            inputs, labels = self.augment(key, inputs, labels)
        return self._standardised(inputs), labels

    def _standardised(self, inputs: Array) -> Array:
        if self.moments is None:
            return inputs
        mean, deviation = self.moments
        divisor = np.where(deviation > 0, deviation, 1.0).astype(np.float32)
        return (inputs - mean.astype(np.float32)) / divisor


def _to_unit_range(inputs: Array) -> Array:
    scale = 255.0 if inputs.dtype == jnp.uint8 else 1.0
    return inputs.astype(jnp.float32) / scale


def has_means_of_both_signs(prepare: Preparation, inputs: np.ndarray, positions: np.ndarray) -> bool:
    """Whether, as models take them, the mean of some channel is above 0 in one of the images inputs[positions] and
    below in another. Of standardised images it always is, of other bytes never; floating images are looked at."""
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
    """([channel] mean, [channel] deviation) of inputs[positions] as they are in unit range, in float64."""
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

"""Augmentations of colour, on RGB images in 0..1; a mask stays as it is."""

from collections.abc import Callable
from functools import partial
from typing import Annotated

import dm_pix
import jax
import jax.numpy as jnp

from fedjax_het.data.augmentation_geometry import Transform
from fedjax_het.types import Array, Key
from fedjax_het.validation import Fraction, NonNegative, Range, validate_arguments

Hue = Annotated[float, Range(0, 0.5)]
_LUMA = (0.299, 0.587, 0.114)  # ITU-R BT.601


@validate_arguments
def jitter(
    brightness: NonNegative = 0.0, contrast: NonNegative = 0.0, saturation: NonNegative = 0.0, hue: Hue = 0.0
) -> Transform:
    """Brightness, contrast, saturation and hue, each changed at random, in this order.

        x <- clip(a x + (1 - a) other),   a in [max(0, 1 - b), 1 + b]

    with b the argument and `other` black (brightness), the mean grey of the image (contrast), the image in grey
    (saturation). hue: turned by -hue to hue of the whole circle, at most 0.5.
    As torchvision's ColorJitter, which draws the order too.
    Raises InputError for a negative argument and a hue above 0.5.
    """
    steps = [
        (brightness, partial(_blended, jnp.zeros_like)),
        (contrast, partial(_blended, lambda image: jnp.mean(_grey(image)))),
        (saturation, partial(_blended, _grey)),
        (hue, _turned),
    ]

    def transform(key: Key, image: Array, mask: Array | None) -> tuple[Array, Array | None]:
        for (strength, step), own in zip(steps, jax.random.split(key, len(steps)), strict=True):
            if strength:
                image = step(own, image, strength)
        return image, mask

    return transform


@validate_arguments
def grayscale(probability: Fraction) -> Transform:
    """With this probability grey, in three equal channels. Raises InputError for a probability outside 0 to 1."""

    def transform(key: Key, image: Array, mask: Array | None) -> tuple[Array, Array | None]:
        return jnp.where(jax.random.bernoulli(key, probability), _grey(image), image), mask

    return transform


def _grey(image: Array) -> Array:
    return jnp.sum(image * jnp.array(_LUMA), axis=-1, keepdims=True)


def _blended(other: Callable[[Array], Array], key: Key, image: Array, strength: float) -> Array:
    share = jax.random.uniform(key, (), minval=max(0.0, 1 - strength), maxval=1 + strength)
    return jnp.clip(share * image + (1 - share) * other(image), 0, 1)


def _turned(key: Key, image: Array, strength: float) -> Array:
    return dm_pix.adjust_hue(image, jax.random.uniform(key, (), minval=-strength, maxval=strength))

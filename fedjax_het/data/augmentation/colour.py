"""Augmentations of colour, on RGB images in 0..1; a mask stays as it is."""

from collections.abc import Callable
from functools import partial

import dm_pix
import jax
import jax.numpy as jnp

from fedjax_het.data.augmentation.geometry import Transform
from fedjax_het.errors import InputError
from fedjax_het.types import Array, Key

_LUMA = (0.299, 0.587, 0.114)  # ITU-R BT.601


def jitter(brightness: float = 0.0, contrast: float = 0.0, saturation: float = 0.0, hue: float = 0.0) -> Transform:
    """Brightness, contrast, saturation and hue, each changed at random, in this order.

        x <- clip(a x + (1 - a) other),   a in [max(0, 1 - b), 1 + b]

    with b the argument and `other` black (brightness), the mean grey of the image (contrast), the image in grey
    (saturation). hue: turned by -hue to hue of the whole circle, at most 0.5.
    As torchvision's ColorJitter, which draws the order too.
    Raises InputError for a negative argument and a hue above 0.5.
    """
    for name, value in {"brightness": brightness, "contrast": contrast, "saturation": saturation, "hue": hue}.items():
        if not 0 <= value <= (0.5 if name == "hue" else float("inf")):
            limit = "between 0 and 0.5" if name == "hue" else "0 or more"
            raise InputError(f"{name}: must be {limit}, not {value}.")
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


def grayscale(probability: float) -> Transform:
    """With this probability grey, in three equal channels. Raises InputError for a probability outside 0 to 1."""
    if not 0 <= probability <= 1:
        raise InputError(f"grayscale: a probability lies between 0 and 1, not {probability}.")

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

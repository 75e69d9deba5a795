"""Augmentations that move pixels. A mask, where there is one, moves along, each of its pixels to the nearest."""

from collections.abc import Callable, Sequence
from typing import Annotated

import jax
import jax.numpy as jnp
from jax.scipy.ndimage import map_coordinates

from fedjax_het.errors import InputError, nearest
from fedjax_het.types import Array, Key
from fedjax_het.validation import LARGEST_COUNT, Fraction, Positive, Range, validate_arguments

Transform = Callable[[Key, Array, Array | None], tuple[Array, Array | None]]
"""(key, image [height, width, channel] float32 in 0..1, mask [height, width] or None) -> both, of the same shapes."""

Degrees = Annotated[float, Range(0, 180)]
Turns = Annotated[int, Range(-LARGEST_COUNT, LARGEST_COUNT, is_whole=True)]
MODES = {"horizontal": (False, True), "vertical": (True, False), "both": (True, True)}  # rows, columns run backwards


@validate_arguments
def resized_crop(area: tuple[Positive, Positive], ratio: tuple[Positive, Positive] = (3 / 4, 4 / 3)) -> Transform:
    """A part of the image, enlarged to the image's size: linear interpolation, smoothed where it shrinks.

    area: the smallest and largest share of the image.   ratio: of width to height, drawn evenly on a logarithmic scale.
    As torchvision's RandomResizedCrop, but a box that is longer than the image is cut to it, not drawn again, and boxes
    lie between pixels too.
    Raises InputError for ranges that are empty or not positive.
    """
    _check_range("crop", area)
    _check_range("ratio", ratio)

    def transform(key: Key, image: Array, mask: Array | None) -> tuple[Array, Array | None]:
        keys = jax.random.split(key, 3)
        share = jax.random.uniform(keys[0], (), minval=area[0], maxval=area[1])
        shape = jnp.exp(jax.random.uniform(keys[1], (), minval=jnp.log(ratio[0]), maxval=jnp.log(ratio[1])))
        size = jnp.minimum(jnp.sqrt(jnp.stack([share / shape, share * shape])), 1.0)
        extent = jnp.array(image.shape[:2], float)
        first = jax.random.uniform(keys[2], (2,)) * (1 - size) * extent
        scaled = jax.image.scale_and_translate(image, image.shape, (0, 1), 1 / size, -first / size, method="linear")
        if mask is not None:
            rows, columns = (
                jnp.floor(first[i] + (jnp.arange(n) + 0.5) * size[i]).astype(int) for i, n in enumerate(mask.shape)
            )
            mask = mask[rows[:, None], columns]
        return scaled, mask

    return transform


@validate_arguments
def rotation(degrees: Degrees) -> Transform:
    """By an angle between -degrees and degrees around the middle; linear interpolation, zeros from outside.

    Raises InputError for an angle outside 0 to 180.
    """

    def transform(key: Key, image: Array, mask: Array | None) -> tuple[Array, Array | None]:
        angle = jnp.deg2rad(jax.random.uniform(key, (), minval=-degrees, maxval=degrees))
        middle = jnp.array([(n - 1) / 2 for n in image.shape[:2]])[:, None, None]
        y, x = jnp.mgrid[: image.shape[0], : image.shape[1]] - middle
        turned = middle + jnp.stack([jnp.cos(angle) * y - jnp.sin(angle) * x, jnp.sin(angle) * y + jnp.cos(angle) * x])
        image = jax.vmap(lambda plane: map_coordinates(plane, list(turned), order=1), -1, -1)(image)
        return image, None if mask is None else map_coordinates(mask, list(turned), order=0)

    return transform


@validate_arguments
def quarter_turns(turns: Sequence[Turns] = (0, 1, 2, 3)) -> Transform:
    """By one of so many times 90 degrees, counter-clockwise; what is listed twice comes twice as often.

    Raises InputError for an empty list, and, traced, for an image that is not square.
    """
    if not turns:
        raise InputError("quarter_turns: list at least one number of turns, say (0, 1, 2, 3).")

    def transform(key: Key, image: Array, mask: Array | None) -> tuple[Array, Array | None]:
        if image.shape[0] != image.shape[1]:
            raise InputError(f"quarter_turns: images of {image.shape[0]}x{image.shape[1]} are not square.")
        turn = jax.random.choice(key, jnp.array(turns)) % 4

        def turned(pixels: Array) -> Array:
            pixels = jnp.where(turn % 2 == 1, pixels.swapaxes(0, 1), pixels)
            return _mirrored(pixels, (turn == 1) | (turn == 2), turn >= 2)

        return turned(image), None if mask is None else turned(mask)

    return transform


@validate_arguments
def flip(probability: Fraction = 0.5, modes: Sequence[str] = ("horizontal",)) -> Transform:
    """With this probability mirrored, in one of `modes` at random: "horizontal" (left and right), "vertical", "both".

    Raises InputError for a probability outside 0 to 1 and an unknown mode.
    """
    for mode in modes or ("",):
        if mode not in MODES:
            raise InputError(f"flip_modes: unknown mode '{mode}'. {nearest(mode, MODES)}")

    def transform(key: Key, image: Array, mask: Array | None) -> tuple[Array, Array | None]:
        is_flipped, which = jax.random.split(key)
        chosen = jax.random.choice(which, jnp.array([MODES[mode] for mode in modes]))
        rows, columns = chosen & jax.random.bernoulli(is_flipped, probability)
        return _mirrored(image, rows, columns), None if mask is None else _mirrored(mask, rows, columns)

    return transform


def _mirrored(pixels: Array, rows: Array, columns: Array) -> Array:
    pixels = jnp.where(rows, pixels[::-1], pixels)
    return jnp.where(columns, pixels[:, ::-1], pixels)


def _check_range(name: str, ends: tuple[float, float]) -> None:
    if ends[0] > ends[1]:
        raise InputError(f"{name}: two positive numbers, the smaller first, say (0.7, 1.0), not {ends}.")

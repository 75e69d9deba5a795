"""Random augmentations of training images, applied in the step that reads them: pure functions of a key.

An example's key is folded from the run's seed, the round, the client, the step and the example's place in the batch. A
mask follows the augmentations that move pixels, each of its pixels to the nearest place; those of color leave it alone.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Annotated

import dm_pix
import jax
import jax.numpy as jnp
from jax.scipy.ndimage import map_coordinates

from fedjax_het.errors import InputError, nearest
from fedjax_het.types import Array, Key
from fedjax_het.validation import LARGEST_COUNT, Fraction, NonNegative, Positive, Range, validate_arguments

Augmentation = Callable[[Key, Array, Array], tuple[Array, Array]]
"""(key, inputs [batch, height, width, channel] in 0..1, labels [batch] or [batch, height, width]) -> both."""
Transform = Callable[[Key, Array, Array | None], tuple[Array, Array | None]]
"""(key, image [height, width, channel] float32 in 0..1, mask [height, width] or None) -> both, of the same shapes."""
Degrees = Annotated[float, Range(0, 180)]
QuarterTurns = Annotated[int, Range(-LARGEST_COUNT, LARGEST_COUNT, is_whole=True)]
Hue = Annotated[float, Range(0, 0.5)]
FLIP_MODES = {"horizontal": (False, True), "vertical": (True, False), "both": (True, True)}  # (rows, columns) reversed
_RGB = 3
_LUMA = (0.299, 0.587, 0.114)  # ITU-R BT.601


def none() -> None:
    """Training images as they are."""


@validate_arguments
def images(
    crop: tuple[Positive, Positive] = (1.0, 1.0),
    ratio: tuple[Positive, Positive] = (3 / 4, 4 / 3),
    rotation: Degrees = 0.0,
    quarter_turns: Sequence[QuarterTurns] = (0,),
    flip: Fraction = 0.0,
    flip_modes: Sequence[str] = ("horizontal",),
    brightness: NonNegative = 0.0,
    contrast: NonNegative = 0.0,
    saturation: NonNegative = 0.0,
    hue: Hue = 0.0,
    grayscale: Fraction = 0.0,
) -> Augmentation:
    """Crop, rotate, turn, flip, change colours, drop them, in this order; what is left at its default costs nothing.

    crop: share of the image that is kept, enlarged, with width to height in `ratio`, see `crop_and_resize`.
    rotation: up to so many degrees.   quarter_turns: times 90 degrees, one of the list.
    flip: probability, in one of flip_modes.   brightness, contrast, saturation, hue: see `jitter_colors`.
    grayscale: probability.

    FedRD: crop=(0.7, 1), flip=0.5, brightness=contrast=saturation=hue=0.4, grayscale=0.1.
    FedLD: crop=(0.6, 1) on Retina, (0.8, 1.2) on COVID-FL; rotation=10, flip=0.5.
    HarmoFL, prostate: quarter_turns=(0, 1, 2, 3, 4), flip=0.75 in all three modes.
    Raises InputError for values out of range, and, traced, for inputs that are no images.
    """
    transforms: list[Transform] = []
    if tuple(crop) != (1.0, 1.0):
        transforms.append(crop_and_resize(crop, ratio))
    if rotation:
        transforms.append(rotate(rotation))
    if any(turn % 4 for turn in quarter_turns) or not quarter_turns:
        transforms.append(rotate_by_quarter_turns(quarter_turns))
    if flip:
        transforms.append(flip_randomly(flip, flip_modes))
    coloured = [brightness, contrast, saturation, hue]
    if any(coloured):
        transforms.append(jitter_colors(*coloured))
    if grayscale:
        transforms.append(drop_colors(grayscale))
    return _apply_to_batches(transforms, needs_colour=any([*coloured, grayscale]))


def _apply_to_batches(transforms: Sequence[Transform], needs_colour: bool) -> Augmentation:
    def one(key: Key, image: Array, mask: Array | None) -> tuple[Array, Array | None]:
        for number, transform in enumerate(transforms):
            image, mask = transform(jax.random.fold_in(key, number), image, mask)
        return image, mask

    def augment(key: Key, inputs: Array, labels: Array) -> tuple[Array, Array]:
        if inputs.ndim != 4:
            raise InputError(f"augment: needs images [batch, height, width, channel], not {list(inputs.shape)}.")
        if needs_colour and inputs.shape[-1] != _RGB:
            raise InputError(f"augment: colours need 3 channels, these images have {inputs.shape[-1]}.")
        keys = jax.vmap(jax.random.fold_in, in_axes=(None, 0))(key, jax.numpy.arange(len(inputs)))
        if labels.ndim == 1:
            return jax.vmap(lambda key, image: one(key, image, None)[0])(keys, inputs), labels
        return jax.vmap(one)(keys, inputs, labels)

    return augment


@validate_arguments
def crop_and_resize(area: tuple[Positive, Positive], ratio: tuple[Positive, Positive] = (3 / 4, 4 / 3)) -> Transform:
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
def rotate(degrees: Degrees) -> Transform:
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
def rotate_by_quarter_turns(turns: Sequence[QuarterTurns] = (0, 1, 2, 3)) -> Transform:
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
            return _mirror(pixels, (turn == 1) | (turn == 2), turn >= 2)

        return turned(image), None if mask is None else turned(mask)

    return transform


@validate_arguments
def flip_randomly(probability: Fraction = 0.5, modes: Sequence[str] = ("horizontal",)) -> Transform:
    """With this probability mirrored, in one of `modes` at random: "horizontal" (left and right), "vertical", "both".

    Raises InputError for a probability outside 0 to 1 and an unknown mode.
    """
    for mode in modes or ("",):
        if mode not in FLIP_MODES:
            raise InputError(f"flip_modes: unknown mode '{mode}'. {nearest(mode, FLIP_MODES)}")

    def transform(key: Key, image: Array, mask: Array | None) -> tuple[Array, Array | None]:
        is_flipped, which = jax.random.split(key)
        chosen = jax.random.choice(which, jnp.array([FLIP_MODES[mode] for mode in modes]))
        rows, columns = chosen & jax.random.bernoulli(is_flipped, probability)
        return _mirror(image, rows, columns), None if mask is None else _mirror(mask, rows, columns)

    return transform


def _mirror(pixels: Array, rows: Array, columns: Array) -> Array:
    pixels = jnp.where(rows, pixels[::-1], pixels)
    return jnp.where(columns, pixels[:, ::-1], pixels)


def _check_range(name: str, ends: tuple[float, float]) -> None:
    if ends[0] > ends[1]:
        raise InputError(f"{name}: two positive numbers, the smaller first, say (0.7, 1.0), not {ends}.")


@validate_arguments
def jitter_colors(
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
        (brightness, partial(_blend, jnp.zeros_like)),
        (contrast, partial(_blend, lambda image: jnp.mean(_to_gray(image)))),
        (saturation, partial(_blend, _to_gray)),
        (hue, _shift_hue),
    ]

    def transform(key: Key, image: Array, mask: Array | None) -> tuple[Array, Array | None]:
        for (strength, step), own in zip(steps, jax.random.split(key, len(steps)), strict=True):
            if strength:
                image = step(own, image, strength)
        return image, mask

    return transform


@validate_arguments
def drop_colors(probability: Fraction) -> Transform:
    """With this probability grey, in three equal channels. Raises InputError for a probability outside 0 to 1."""

    def transform(key: Key, image: Array, mask: Array | None) -> tuple[Array, Array | None]:
        return jnp.where(jax.random.bernoulli(key, probability), _to_gray(image), image), mask

    return transform


def _to_gray(image: Array) -> Array:
    return jnp.sum(image * jnp.array(_LUMA), axis=-1, keepdims=True)


def _blend(other: Callable[[Array], Array], key: Key, image: Array, strength: float) -> Array:
    share = jax.random.uniform(key, (), minval=max(0.0, 1 - strength), maxval=1 + strength)
    return jnp.clip(share * image + (1 - share) * other(image), 0, 1)


def _shift_hue(key: Key, image: Array, strength: float) -> Array:
    return dm_pix.adjust_hue(image, jax.random.uniform(key, (), minval=-strength, maxval=strength))


AUGMENTATIONS: Mapping[str, Callable] = MappingProxyType({"none": none, "images": images})

"""Random augmentations of training images: pure functions of a key, applied inside the compiled training step.

The key of an example is derived from the run's seed, the round, the client, the step and the position in the batch.
Geometric augmentations also apply to masks, with nearest-neighbor interpolation; color augmentations do not.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Annotated

import dm_pix
import jax
import jax.numpy as jnp
from jax.scipy.ndimage import map_coordinates

from fedjax_het.concepts import mirror, turn
from fedjax_het.errors import InputError, nearest
from fedjax_het.labels import find_kind
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
    """Leave training images as they are."""


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
    """Crop, rotate, flip and recolor images at random, in the order of the arguments.

    Arguments left at their defaults cost nothing. Values in papers:
    FedRD: crop=(0.7, 1), flip=0.5, brightness=contrast=saturation=hue=0.4, grayscale=0.1.
    FedLD: crop=(0.6, 1) on Retina, (0.8, 1.2) on COVID-FL; rotation=10, flip=0.5.
    HarmoFL, prostate: quarter_turns=(0, 1, 2, 3, 4), flip=0.75 in all three modes.

    Args:
        crop: The minimum and maximum fraction of the image area to keep, see `crop_and_resize`.
        ratio: The minimum and maximum ratio of width to height of the crop.
        rotation: The maximum angle in degrees, see `rotate`.
        quarter_turns: The rotations to choose from, in units of 90 degrees.
        flip: The probability of a reflection.
        flip_modes: The reflections to choose from, see `flip_randomly`.
        brightness: The strength of random brightness changes, see `jitter_colors`.
        contrast: The strength of random contrast changes.
        saturation: The strength of random saturation changes.
        hue: The strength of random hue changes.
        grayscale: The probability of conversion to grayscale.

    Raises:
        InputError: A value is out of range; when the augmentation is traced, inputs are not images, or color changes
            are requested for images without three channels.
    """
    transforms: list[Transform] = []
    if tuple(crop) != (1.0, 1.0):
        transforms.append(crop_and_resize(crop, ratio))
    if rotation:
        transforms.append(rotate(rotation))
    if any(turns % 4 for turns in quarter_turns) or not quarter_turns:
        transforms.append(rotate_by_quarter_turns(quarter_turns))
    if flip:
        transforms.append(flip_randomly(flip, flip_modes))
    color_strengths = [brightness, contrast, saturation, hue]
    if any(color_strengths):
        transforms.append(jitter_colors(*color_strengths))
    if grayscale:
        transforms.append(drop_colors(grayscale))
    return _apply_to_batches(transforms, needs_color=any([*color_strengths, grayscale]))


def _apply_to_batches(transforms: Sequence[Transform], needs_color: bool) -> Augmentation:
    def transform(key: Key, image: Array, mask: Array | None) -> tuple[Array, Array | None]:
        for number, apply in enumerate(transforms):
            image, mask = apply(jax.random.fold_in(key, number), image, mask)
        return image, mask

    def augment(key: Key, inputs: Array, labels: Array) -> tuple[Array, Array]:
        if inputs.ndim != 4:
            raise InputError(f"augment: needs images [batch, height, width, channel], not {list(inputs.shape)}.")
        if needs_color and inputs.shape[-1] != _RGB:
            raise InputError(
                f"augment: brightness, contrast, saturation, hue and grayscale need images of 3 channels, these have "
                f"{inputs.shape[-1]}. Leave them out, or read the data with channels=3."
            )
        keys = jax.vmap(jax.random.fold_in, in_axes=(None, 0))(key, jnp.arange(len(inputs)))
        augmented, masks = jax.vmap(transform)(keys, inputs, labels if find_kind(labels).name == "masks" else None)
        return augmented, labels if masks is None else masks

    return augment


@validate_arguments
def crop_and_resize(area: tuple[Positive, Positive], ratio: tuple[Positive, Positive] = (3 / 4, 4 / 3)) -> Transform:
    """Resize a random crop to the size of the image, with linear interpolation and antialiasing.

    Like torchvision's RandomResizedCrop, but boxes longer than the image are clipped instead of redrawn, and boxes may
    lie between pixels.

    Args:
        area: The minimum and maximum fraction of the image area.
        ratio: The minimum and maximum ratio of width to height, sampled log-uniformly.

    Raises:
        InputError: A range is empty.
    """
    for name, ends in (("crop", area), ("ratio", ratio)):
        if ends[0] > ends[1]:
            raise InputError(f"{name}: two positive numbers, the smaller first, say (0.7, 1.0), not {ends}.")

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
    """Rotate by a random angle around the center, with linear interpolation and zeros outside the image.

    Args:
        degrees: The maximum angle; angles are uniform between -degrees and degrees.
    """

    def transform(key: Key, image: Array, mask: Array | None) -> tuple[Array, Array | None]:
        angle = jnp.deg2rad(jax.random.uniform(key, (), minval=-degrees, maxval=degrees))
        center = jnp.array([(n - 1) / 2 for n in image.shape[:2]])[:, None, None]
        y, x = jnp.mgrid[: image.shape[0], : image.shape[1]] - center
        cos, sin = jnp.cos(angle), jnp.sin(angle)
        places = list(center + jnp.stack([cos * y - sin * x, sin * y + cos * x]))
        image = jax.vmap(lambda plane: map_coordinates(plane, places, order=1), -1, -1)(image)
        return image, None if mask is None else map_coordinates(mask, places, order=0)

    return transform


@validate_arguments
def rotate_by_quarter_turns(turns: Sequence[QuarterTurns] = (0, 1, 2, 3)) -> Transform:
    """Rotate by a random multiple of 90 degrees, counter-clockwise.

    Args:
        turns: The multiples to choose from; duplicates increase the probability.

    Raises:
        InputError: The list is empty; when the transform is traced, an image is not square.
    """
    if not turns:
        raise InputError("quarter_turns: list at least one number of turns, say (0, 1, 2, 3).")

    def transform(key: Key, image: Array, mask: Array | None) -> tuple[Array, Array | None]:
        if image.shape[0] != image.shape[1]:
            raise InputError(
                f"quarter_turns: images of {image.shape[0]}x{image.shape[1]} are not square. Read them with a `size`."
            )
        chosen = jax.random.choice(key, jnp.array(turns)) % 4
        return turn(image, chosen), None if mask is None else turn(mask, chosen)

    return transform


@validate_arguments
def flip_randomly(probability: Fraction = 0.5, modes: Sequence[str] = ("horizontal",)) -> Transform:
    """Mirror the image with a probability.

    Args:
        probability: The probability.
        modes: The reflections to choose from: "horizontal" (swaps left and right), "vertical", "both".

    Raises:
        InputError: A mode is unknown.
    """
    for mode in modes or ("",):
        if mode not in FLIP_MODES:
            raise InputError(f"flip_modes: unknown mode '{mode}'. {nearest(mode, FLIP_MODES)}")

    def transform(key: Key, image: Array, mask: Array | None) -> tuple[Array, Array | None]:
        flip_key, mode_key = jax.random.split(key)
        chosen = jax.random.choice(mode_key, jnp.array([FLIP_MODES[mode] for mode in modes]))
        rows, columns = chosen & jax.random.bernoulli(flip_key, probability)
        return mirror(image, rows, columns), None if mask is None else mirror(mask, rows, columns)

    return transform


@validate_arguments
def jitter_colors(
    brightness: NonNegative = 0.0, contrast: NonNegative = 0.0, saturation: NonNegative = 0.0, hue: Hue = 0.0
) -> Transform:
    """Change brightness, contrast, saturation and hue at random, in this order.

        x <- clip(a x + (1 - a) other),   a in [max(0, 1 - b), 1 + b]

    with b the argument and `other` black (brightness), the mean gray level of the image (contrast), or the grayscale
    image (saturation). Like torchvision's ColorJitter, except that the order is fixed.

    Args:
        brightness: b of the brightness.
        contrast: b of the contrast.
        saturation: b of the saturation.
        hue: The maximum hue shift as a fraction of the color circle, at most 0.5.
    """
    steps = [
        (brightness, partial(_blend, jnp.zeros_like)),
        (contrast, partial(_blend, lambda image: jnp.mean(_to_gray(image)))),
        (saturation, partial(_blend, _to_gray)),
        (hue, _shift_hue),
    ]

    def transform(key: Key, image: Array, mask: Array | None) -> tuple[Array, Array | None]:
        for (strength, step), subkey in zip(steps, jax.random.split(key, len(steps)), strict=True):
            if strength:
                image = step(subkey, image, strength)
        return image, mask

    return transform


@validate_arguments
def drop_colors(probability: Fraction) -> Transform:
    """Convert the image to grayscale, with three equal channels, with a probability between 0 and 1."""

    def transform(key: Key, image: Array, mask: Array | None) -> tuple[Array, Array | None]:
        return jnp.where(jax.random.bernoulli(key, probability), _to_gray(image), image), mask

    return transform


def _to_gray(image: Array) -> Array:
    return jnp.sum(image * jnp.array(_LUMA), axis=-1, keepdims=True)


def _blend(other: Callable[[Array], Array], key: Key, image: Array, strength: float) -> Array:
    share = jax.random.uniform(key, (), minval=max(0.0, 1 - strength), maxval=1 + strength)
    return jnp.clip(share * image + (1 - share) * other(image), 0, 1)


def _shift_hue(key: Key, image: Array, strength: float) -> Array:
    return jnp.asarray(dm_pix.adjust_hue(image, jax.random.uniform(key, (), minval=-strength, maxval=strength)))


AUGMENTATIONS: Mapping[str, Callable] = MappingProxyType({"none": none, "images": images})

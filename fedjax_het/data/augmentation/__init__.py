"""What is done to training images, at random, in the step that reads them: pure functions of a key.

An example's key is folded from the run's seed, the round, the client, the step and its place in the batch.
"""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

import jax

from fedjax_het.data import augmentation_color, augmentation_geometry
from fedjax_het.data.augmentation_color import Hue
from fedjax_het.data.augmentation_geometry import Degrees, Transform, Turns
from fedjax_het.errors import InputError
from fedjax_het.types import Array, Key
from fedjax_het.validation import Fraction, NonNegative, Positive, validate_arguments

Augmentation = Callable[[Key, Array, Array], tuple[Array, Array]]
"""(key, inputs [batch, height, width, channel] in 0..1, labels [batch] or [batch, height, width]) -> both."""

_RGB = 3


def none() -> None:
    """Training images as they are."""


@validate_arguments
def images(
    crop: tuple[Positive, Positive] = (1.0, 1.0),
    ratio: tuple[Positive, Positive] = (3 / 4, 4 / 3),
    rotation: Degrees = 0.0,
    quarter_turns: Sequence[Turns] = (0,),
    flip: Fraction = 0.0,
    flip_modes: Sequence[str] = ("horizontal",),
    brightness: NonNegative = 0.0,
    contrast: NonNegative = 0.0,
    saturation: NonNegative = 0.0,
    hue: Hue = 0.0,
    grayscale: Fraction = 0.0,
) -> Augmentation:
    """Crop, rotate, turn, flip, change colours, drop them, in this order; what is left at its default costs nothing.

    crop: share of the image that is kept, enlarged, with width to height in `ratio`, see `geometry.resized_crop`.
    rotation: up to so many degrees.   quarter_turns: times 90 degrees, one of the list.
    flip: probability, in one of flip_modes.   brightness, contrast, saturation, hue: see `colour.jitter`.
    grayscale: probability.

    FedRD: crop=(0.7, 1), flip=0.5, brightness=contrast=saturation=hue=0.4, grayscale=0.1.
    FedLD: crop=(0.6, 1) on Retina, (0.8, 1.2) on COVID-FL; rotation=10, flip=0.5.
    HarmoFL, prostate: quarter_turns=(0, 1, 2, 3, 4), flip=0.75 in all three modes.
    Raises InputError for values out of range, and, traced, for inputs that are no images.
    """
    transforms: list[Transform] = []
    if tuple(crop) != (1.0, 1.0):
        transforms.append(augmentation_geometry.resized_crop(crop, ratio))
    if rotation:
        transforms.append(augmentation_geometry.rotation(rotation))
    if any(turn % 4 for turn in quarter_turns) or not quarter_turns:
        transforms.append(augmentation_geometry.quarter_turns(quarter_turns))
    if flip:
        transforms.append(augmentation_geometry.flip(flip, flip_modes))
    coloured = [brightness, contrast, saturation, hue]
    if any(coloured):
        transforms.append(augmentation_color.jitter(*coloured))
    if grayscale:
        transforms.append(augmentation_color.grayscale(grayscale))
    return _of_batches(transforms, needs_colour=any([*coloured, grayscale]))


def _of_batches(transforms: Sequence[Transform], needs_colour: bool) -> Augmentation:
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


AUGMENTATIONS: Mapping[str, Callable] = MappingProxyType({"none": none, "images": images})

"""Handwritten digits included in scikit-learn."""

from typing import Any

import numpy as np

from fedjax_het.data.dataset import Dataset, assemble

DOMAINS = ("plain", "inverted", "rotated", "noisy")
_STROKE = 128  # minimum gray level of the stroke
_NOISE = 48.0  # gray levels


def digits(masks: bool = False, domains: bool = False) -> Dataset:
    """Load 1,797 handwritten digits, 8 x 8 grayscale, 10 classes, without a published test split.

    These are scikit-learn's `load_digits`, the test part of the UCI "Optical Recognition of Handwritten Digits"; values
    0..16 are stored as round(255 / 16 * value). Both options are for testing code; scores do not transfer to medical
    images or photographs.

    Args:
        masks: Whether labels are masks of the stroke, the pixels with gray level 128 or more, a segmentation task that
            a threshold solves.
        domains: Whether to create synthetic domains: every four digits, one is unchanged ("plain"), one "inverted", one
            "rotated" by a quarter turn with its mask, and one "noisy", with Gaussian noise of 48 gray levels.
    """
    from sklearn.datasets import load_digits  # takes seconds to import

    bunch: Any = load_digits()
    images = np.rint(bunch.images * (255 / 16)).astype(np.uint8)
    labels = (images >= _STROKE).astype(np.uint8) if masks else bunch.target
    options: dict[str, Any] = {"class_names": ("background", "stroke")} if masks else {}
    if domains:
        options |= {"domains": np.arange(len(images)) % len(DOMAINS), "domain_names": DOMAINS}
        images, labels = _transform_domains(images, labels)
    return assemble("digits", images, labels, **options)


def _transform_domains(images: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    images, labels = images.copy(), labels.copy()
    inverted, rotated, noisy = (slice(number, None, len(DOMAINS)) for number in (1, 2, 3))
    images[inverted] = 255 - images[inverted]
    images[rotated] = np.rot90(images[rotated], axes=(1, 2))
    if labels.ndim > 1:
        labels[rotated] = np.rot90(labels[rotated], axes=(1, 2))
    noise = np.random.default_rng(0).normal(scale=_NOISE, size=images[noisy].shape)
    images[noisy] = np.clip(np.rint(images[noisy] + noise), 0, 255)
    return images, labels

"""Handwritten digits that come with scikit-learn."""

from typing import Any

import numpy as np

from fedjax_het.data.dataset import Dataset, assemble

DOMAINS = ("plain", "inverted", "rotated", "noisy")
_STROKE = 128  # the lowest grey level of the stroke
_NOISE = 48.0  # grey levels


def digits(masks: bool = False, domains: bool = False) -> Dataset:
    """Load 1,797 handwritten digits, 8 x 8 grey, 10 classes, without a published test split.

    They are scikit-learn's `load_digits`, the test part of the UCI "Optical Recognition of Handwritten Digits"; values
    0..16 are stored as round(255 / 16 * value). With either option they show that code runs; a score on them says
    nothing about medical images or photographs.

    Args:
        masks: The labels are masks of the stroke, the pixels from grey level 128 on: a segmentation task that a
            threshold solves.
        domains: Synthetic domains: of four digits in turn one stays as it is ("plain"), one is "inverted", one
            "rotated" by a quarter turn with its mask, and one "noisy", with Gaussian noise of 48 grey levels.
    """
    from sklearn.datasets import load_digits  # seconds to import, and only here

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

"""Data that comes with an installed package."""

import numpy as np

from fedjax_het.data.dataset import Dataset, assemble

DOMAINS = ("plain", "inverted", "rotated", "noisy")
_STROKE = 128  # grey level from which a pixel is one of the stroke's
_NOISE = 48.0  # grey levels


def digits(masks: bool = False, domains: bool = False) -> Dataset:
    """1,797 handwritten digits, 8 x 8 grey, 10 classes; no test split of its own.

    Values 0..16 are stored as round(255 / 16 * value). From scikit-learn's `load_digits`, the test part of the UCI
    "Optical Recognition of Handwritten Digits".
    masks: which pixels are the digit's, in place of which digit it is: 1 from grey level 128 on. A segmentation task
    that a threshold solves.
    domains: made, not collected: of four digits in turn one stays as it is ("plain"), one is "inverted", one "rotated"
    by a quarter turn, its mask too, and one "noisy" with Gaussian noise of 48 grey levels.
    With either it shows that code runs; a score on it says nothing about medical images or photographs.
    """
    from sklearn.datasets import load_digits  # seconds to import, and only here

    bunch = load_digits()
    images = np.rint(bunch.images * (255 / 16)).astype(np.uint8)
    labels = (images >= _STROKE).astype(np.uint8) if masks else bunch.target
    options = {"class_names": ("background", "stroke")} if masks else {}
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

"""Data that comes with an installed package."""

import numpy as np

from fedjax_het.data.dataset import Dataset, assemble


def digits() -> Dataset:
    """1,797 handwritten digits, 8 x 8 grey, 10 classes; no test split of its own.

    Values 0..16 are stored as round(255 / 16 * value). From scikit-learn's `load_digits`, the test part of the UCI
    "Optical Recognition of Handwritten Digits".
    """
    from sklearn.datasets import load_digits  # seconds to import, and only here

    bunch = load_digits()
    return assemble("digits", np.rint(bunch.images * (255 / 16)).astype(np.uint8), bunch.target)

"""Digits: those included in scikit-learn, SVHN's Matlab files, and the five domains of FedBN's code."""

from collections.abc import Sequence
from importlib.metadata import distribution
from pathlib import Path
from typing import Annotated, Any, cast

import numpy as np

from fedjax_het.data.assembly import assemble
from fedjax_het.data.dataset import Dataset
from fedjax_het.data.sources._arrays import read_pickle
from fedjax_het.data.sources._assembly import Part, assemble_parts
from fedjax_het.data.sources._io_errors import report_read_errors, require_dataset
from fedjax_het.errors import InputError
from fedjax_het.validation import Count, Range, validate_arguments

DOMAINS = ("plain", "inverted", "rotated", "noisy")
_STROKE = 128  # minimum gray level of the stroke
_NOISE = 48.0  # gray levels
_TAGS = {"even": (0, 2, 4, 6, 8), "prime": (2, 3, 5, 7), "above_4": (5, 6, 7, 8, 9), "has_loop": (0, 6, 8, 9)}
_NAMES = tuple("0123456789")
_SVHN_URL = "http://ufldl.stanford.edu/housenumbers/"
_FEDBN_URL = "https://github.com/med-air/FedBN"
_FOLDERS = {"mnist": "MNIST", "svhn": "SVHN", "usps": "USPS", "synth": "SynthDigits", "mnist_m": "MNIST_M"}
NumParts = Annotated[int, Range(1, 10, is_whole=True)]


def digits(masks: bool = False, domains: bool = False, tags: bool = False) -> Dataset:
    """Load 1,797 handwritten digits, 8 x 8 grayscale, 10 classes, without a published test split.

    These are scikit-learn's `load_digits`, the test part of the UCI "Optical Recognition of Handwritten Digits"; values
    0..16 are stored as round(255 / 16 * value). All options are for testing code; scores do not transfer to medical
    images or photographs.

    Args:
        masks: Whether labels are masks of the stroke, the pixels with gray level 128 or more, a segmentation task that
            a threshold solves.
        domains: Whether to create synthetic domains: every four digits, one is unchanged ("plain"), one "inverted", one
            "rotated" by a quarter turn with its mask, and one "noisy", with Gaussian noise of 48 gray levels.
        tags: Whether labels are tags, properties of the digit: even, prime, above_4 and has_loop.

    Raises:
        InputError: Labels are to be both masks and tags.
    """
    if masks and tags:
        raise InputError("digits: labels are either masks or tags. Set one of the two.")
    file = Path(str(distribution("scikit-learn").locate_file("sklearn/datasets/data/digits.csv.gz")))
    if not file.is_file():  # it is read without scikit-learn, which takes seconds to import
        raise InputError(f"digits: {file} does not exist. Install it again: pip install --force-reinstall scikit-learn")
    table = np.loadtxt(file, delimiter=",")
    images = np.rint(table[:, :-1].reshape(-1, 8, 8) * (255 / 16)).astype(np.uint8)
    labels = (images >= _STROKE).astype(np.uint8) if masks else table[:, -1].astype(int)
    options: dict[str, Any] = {"class_names": ("background", "stroke")} if masks else {}
    if tags:
        labels = np.stack([np.isin(table[:, -1], digits_with) for digits_with in _TAGS.values()], axis=1)
        options = {"class_names": tuple(_TAGS), "kind": "tags"}
    if domains:
        options |= {"domains": np.arange(len(images)) % len(DOMAINS), "domain_names": DOMAINS}
        images, labels = _transform_domains(images, labels)
    return assemble("digits", images, labels, **options)


def _transform_domains(images: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    images, labels = images.copy(), labels.copy()
    inverted, rotated, noisy = (slice(number, None, len(DOMAINS)) for number in (1, 2, 3))
    images[inverted] = 255 - images[inverted]
    images[rotated] = np.rot90(images[rotated], axes=(1, 2))
    if labels.ndim > 2:
        labels[rotated] = np.rot90(labels[rotated], axes=(1, 2))
    noise = np.random.default_rng(0).normal(scale=_NOISE, size=images[noisy].shape)
    images[noisy] = np.clip(np.rint(images[noisy] + noise), 0, 255)
    return images, labels


@validate_arguments
def svhn(path: str, extra: bool = False, size: Count | None = None) -> Dataset:
    """Read SVHN's cropped digits, train_32x32.mat and test_32x32.mat: 73,257 and 26,032 of 32 x 32 x 3.

    Label 10 of the files, the digit 0, becomes 0. For copies prepared by TensorFlow Datasets use the source `tfds`
    with builder="svhn_cropped".

    Args:
        path: The folder of the files.
        extra: Whether to add extra_32x32.mat, 531,131 easier digits, to the training split.
        size: The side length to which images are resized (LANCZOS).

    Raises:
        InputError: A file is missing, damaged or has another format.

    References:
        Netzer et al., Reading Digits in Natural Images with Unsupervised Feature Learning, 2011.
    """
    place = require_dataset(path, "SVHN", _SVHN_URL)
    splits = {"train": "train", **({"extra": "train"} if extra else {}), "test": "test"}
    parts = [_read_mat(place / f"{name}_32x32.mat", split) for name, split in splits.items()]
    return assemble_parts("svhn", parts, size, class_names=_NAMES)


def _read_mat(file: Path, split: str) -> Part:
    from scipy.io import loadmat, matlab  # slow to import

    with report_read_errors(file):
        try:
            content = loadmat(str(file), variable_names=("X", "y"))
        except matlab.MatReadError as error:  # not a ValueError
            raise ValueError(str(error)) from error
        images, labels = content["X"], content["y"].reshape(-1)
    is_fine = images.dtype == np.uint8 and images.ndim == 4 and images.shape[2:] == (3, len(labels))
    if not is_fine or labels.min(initial=1) < 1 or labels.max(initial=1) > 10:
        raise InputError(
            f"{file} holds X {images.dtype} {images.shape} and y {labels.shape}, not uint8 [height, width, 3, n] with "
            f"labels 1 to 10. It is published at {_SVHN_URL}"
        )
    images = np.ascontiguousarray(images.transpose(3, 0, 1, 2))
    return Part(file, images, (labels % 10).astype(np.int32), split)


@validate_arguments
def digits5(path: str, parts: NumParts | None = 1, size: Count = 28) -> Dataset:
    """Read Digits-5, digits of five domains: MNIST, SVHN, USPS, SynthDigits and MNIST_M.

    The files are those of FedBN's code, pickles of (images, labels): <domain>/test.pkl, <domain>/train.pkl, and the
    parts of 743 images of the latter, <domain>/partitions/train_part<0..9>.pkl.

    Args:
        path: The folder of the domains.
        parts: The number of training parts per domain (default 1, as in FedBN). None: read train.pkl instead.
        size: The side length to which images are resized (LANCZOS), in color (default 28, as in FedBN).

    Raises:
        InputError: A file is missing, damaged or has another format.

    References:
        Li et al., FedBN: Federated Learning on Non-IID Features via Local Batch Normalization, ICLR 2021.
        arXiv:2102.07623
    """
    place = require_dataset(path, "FedBN's Digits-5", _FEDBN_URL)
    if not any((place / folder).is_dir() for folder in _FOLDERS.values()):
        raise InputError(
            f"{place} holds none of the folders {', '.join(_FOLDERS.values())}. FedBN's Digits-5 is published at "
            f"{_FEDBN_URL}"
        )
    names = ["train.pkl"] if parts is None else [f"partitions/train_part{i}.pkl" for i in range(parts)]
    files = [*(("train", name) for name in names), ("test", "test.pkl")]
    read = [
        _read_fedbn_digits(place / folder / name, split, domain)
        for domain, folder in _FOLDERS.items()
        for split, name in files
    ]
    return assemble_parts("digits5", read, size, channels=3, class_names=_NAMES)


def _read_fedbn_digits(file: Path, split: str, domain: str) -> Part:
    images, labels = map(np.asarray, read_pair(file))
    labels = labels.reshape(len(labels), -1)
    is_fine = images.dtype == np.uint8 and images.ndim in (3, 4) and labels.shape == (len(images), 1) and len(images)
    if not is_fine or labels.dtype.kind not in "iuf" or not np.isin(labels, np.arange(10)).all():
        raise InputError(
            f"{file} holds images {images.dtype} {images.shape} and labels {labels.dtype} {labels.shape}, not uint8 "
            "[n, height, width(, 3)] with a digit each. Download it again."
        )
    return Part(file, images, labels[:, 0].astype(np.int32), split, domain)


def read_pair(file: Path) -> Sequence[Any]:
    """The two arrays of a pickle of FedBN's code."""
    pair = cast(Sequence[Any], read_pickle(file, (tuple, list), "a file of FedBN"))
    if len(pair) != 2:
        raise InputError(f"{file} holds {len(pair)} arrays, not two. Download it again.")
    return pair

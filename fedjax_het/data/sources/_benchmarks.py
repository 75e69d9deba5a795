"""SVHN, CINIC-10 and Tiny-ImageNet in their published files."""

from pathlib import Path

import numpy as np

from fedjax_het._internal.regular_files import read_text
from fedjax_het.data.dataset import Dataset
from fedjax_het.data.sources._folders import list_domain_images
from fedjax_het.data.sources._image_listing import (
    ImageEntry,
    assemble_by_name,
    check_files_exist,
    image_dataset,
    list_image_files,
    list_subfolders,
    note_size,
)
from fedjax_het.data.sources._images import conform_images, decoding_options
from fedjax_het.data.sources._io_errors import report_read_errors, require_dataset
from fedjax_het.errors import InputError, nearest
from fedjax_het.validation import Count, validate_arguments

_SVHN_URL = "http://ufldl.stanford.edu/housenumbers/"
_CINIC_URL = "https://datashare.ed.ac.uk/handle/10283/3192"
_CINIC_CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
_CINIC_SIZE, _TINY_SIZE = 270_000, 110_000
_TINY_URL = "http://cs231n.stanford.edu/tiny-imagenet-200.zip"


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
    decoding_options(size, 3)
    parts = {"train": "train", **({"extra": "train"} if extra else {}), "test": "test"}
    chunks = {name: _read_mat(place / f"{name}_32x32.mat") for name in parts}
    inputs = np.concatenate([images for images, _ in chunks.values()])
    return assemble_by_name(
        "svhn",
        conform_images(inputs, size, None),
        np.concatenate([labels for _, labels in chunks.values()]),
        class_names=[str(digit) for digit in range(10)],
        domains=["all"] * len(inputs),
        splits=[parts[name] for name, (_, labels) in chunks.items() for _ in labels],
    )


def _read_mat(file: Path) -> tuple[np.ndarray, np.ndarray]:
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
    return np.ascontiguousarray(images.transpose(3, 0, 1, 2)), (labels % 10).astype(np.int32)


@validate_arguments
def cinic10(path: str, size: Count | None = None, cache: str | None = None) -> Dataset:
    """Read CINIC-10, {train,valid,test}/<class>/<image>.png, 90,000 images of 32 x 32 in each split.

    The domain of an image is its origin: "cifar10", with file names that begin with cifar10, or "imagenet", with
    ImageNet's file names.

    Args:
        path: The folder of the splits.
        size: The side length to which images are resized.
        cache: The cache folder for decoded images, see `folders`.

    Raises:
        InputError: A split is missing, or a folder is not a class.

    References:
        Darlow et al., CINIC-10 Is Not ImageNet or CIFAR-10, 2018. arXiv:1810.03505
    """
    place = require_dataset(path, "CINIC-10", _CINIC_URL)
    folders = [each for each in list_subfolders(place) if each.name in ("train", "valid", "test")]
    if len(folders) != 3:
        found = ", ".join(each.name for each in folders) or "none"
        raise InputError(
            f"{place} must hold the folders train, valid and test, and holds {found} of them. CINIC-10 is published at "
            f"{_CINIC_URL}"
        )
    entries, notes = [], []
    for folder in folders:
        for entry in list_domain_images("", folder, notes):
            if entry.label not in _CINIC_CLASSES:
                raise InputError(
                    f"{Path(entry.path).parent} is no class of CINIC-10. {nearest(entry.label, _CINIC_CLASSES)}"
                )
            origin = "cifar10" if Path(entry.path).name.startswith("cifar10") else "imagenet"
            entries.append(entry._replace(domain=origin, split=folder.name))
    notes += note_size(entries, _CINIC_SIZE)
    return image_dataset("cinic10", entries, size=size, cache=cache, class_names=_CINIC_CLASSES, notes=notes)


@validate_arguments
def tiny_imagenet(path: str, size: Count | None = None, cache: str | None = None) -> Dataset:
    """Read Tiny-ImageNet, 200 classes of 64 x 64 images, in its published layout; val is used as the test split.

    train/<class>/images/<image>, val/images/<image> with val/val_annotations.txt, whose lines start with file and
    class, and wnids.txt with the classes in order. The images in test/ have no published labels and are skipped.

    Args:
        path: The folder tiny-imagenet-200, or its parent.
        size: The side length to which images are resized.
        cache: The cache folder for decoded images, see `folders`.

    Raises:
        InputError: A file is missing, or the class of an image is not in wnids.txt.
    """
    root = require_dataset(path, "Tiny-ImageNet", _TINY_URL, "wnids.txt", "tiny-imagenet-200")
    classes = read_text(root / "wnids.txt").split()
    for name in ("train", "val/images"):
        if not (root / name).is_dir():
            raise InputError(f"{root} holds no folder {name}. Tiny-ImageNet is published at {_TINY_URL}")
    entries = [*_list_tiny_train(root, classes), *_list_tiny_val(root, classes)]
    notes = ["the test split is the published validation split", *note_size(entries, _TINY_SIZE)]
    return image_dataset("tiny_imagenet", entries, size=size, cache=cache, class_names=classes, notes=notes)


def _list_tiny_train(root: Path, classes: list[str]) -> list[ImageEntry]:
    entries = []
    for folder in list_subfolders(root / "train"):
        if folder.name not in classes:
            raise InputError(f"{folder} is of no class in wnids.txt. Remove it, or restore wnids.txt.")
        if not (folder / "images").is_dir() or not (files := list_image_files(folder / "images")):
            raise InputError(f"{folder} holds no images/ with images. Restore them from {_TINY_URL}")
        entries += [ImageEntry(str(file), folder.name, "all") for file in files]
    return entries


def _list_tiny_val(root: Path, classes: list[str]) -> list[ImageEntry]:
    listing = root / "val" / "val_annotations.txt"
    with report_read_errors(listing):
        lines = [(i, line.split()) for i, line in enumerate(read_text(listing).splitlines(), start=1) if line.strip()]
    for line, words in lines:
        if len(words) < 2 or words[1] not in classes:
            raise InputError(f"{listing}, line {line}: '{' '.join(words)}' names no class of wnids.txt. Correct it.")
    entries = [ImageEntry(str(root / "val" / "images" / words[0]), words[1], "all", "test") for _, words in lines]
    check_files_exist(listing, ((line, entry.path) for (line, _), entry in zip(lines, entries, strict=True)))
    return entries

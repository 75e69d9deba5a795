"""Digits-5 and Office-Caltech-10 in the file format of FedBN's code, one domain per site."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, cast

import numpy as np

from fedjax_het.data.dataset import Dataset
from fedjax_het.data.sources._arrays import read_pickle
from fedjax_het.data.sources._folders import list_domain_images
from fedjax_het.data.sources._image_listing import (
    ImageEntry,
    assemble_by_name,
    image_dataset,
    list_entries,
    list_subfolders,
    note_size,
)
from fedjax_het.data.sources._images import conform_images
from fedjax_het.data.sources._io_errors import require_dataset
from fedjax_het.errors import InputError, nearest
from fedjax_het.validation import Count, Range, validate_arguments

_URL = "https://github.com/med-air/FedBN"
_DIGITS = {"mnist": "MNIST", "svhn": "SVHN", "usps": "USPS", "synth": "SynthDigits", "mnist_m": "MNIST_M"}
_NUM_PARTS = 10
_SITES = ("amazon", "caltech", "dslr", "webcam")
_OBJECTS = (
    *("back_pack", "bike", "calculator", "headphones", "keyboard", "laptop_computer", "monitor", "mouse", "mug"),
    "projector",
)
_NUM_OBJECTS = 2533

NumParts = Annotated[int, Range(1, _NUM_PARTS, is_whole=True)]


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
    place = require_dataset(path, "FedBN's Digits-5", _URL)
    names = ["train.pkl"] if parts is None else [f"partitions/train_part{i}.pkl" for i in range(parts)]
    files = [
        (domain, split, place / folder / name)
        for domain, folder in _DIGITS.items()
        for split, name in (*(("train", name) for name in names), ("test", "test.pkl"))
    ]
    if not any((place / folder).is_dir() for folder in _DIGITS.values()):
        raise InputError(
            f"{place} holds none of the folders {', '.join(_DIGITS.values())}. FedBN's Digits-5 is published at {_URL}"
        )
    chunks = [_read_digits(file, size) for _, _, file in files]
    return assemble_by_name(
        "digits5",
        np.concatenate([images for images, _ in chunks]),
        np.concatenate([labels for _, labels in chunks]),
        class_names=[str(digit) for digit in range(10)],
        domains=[domain for (domain, _, _), (_, y) in zip(files, chunks, strict=True) for _ in y],
        splits=[split for (_, split, _), (_, y) in zip(files, chunks, strict=True) for _ in y],
    )


def _read_digits(file: Path, size: int) -> tuple[np.ndarray, np.ndarray]:
    images, labels = _read_pair(file)
    images, labels = np.asarray(images), np.asarray(labels)
    labels = labels.reshape(len(labels), -1)
    is_fine = images.dtype == np.uint8 and images.ndim in (3, 4) and labels.shape == (len(images), 1) and len(images)
    if not is_fine or labels.dtype.kind not in "iuf" or not np.isin(labels, np.arange(10)).all():
        raise InputError(
            f"{file} holds images {images.dtype} {images.shape} and labels {labels.dtype} {labels.shape}, not uint8 "
            "[n, height, width(, 3)] with a digit each. Download it again."
        )
    return conform_images(images, size, 3), labels[:, 0].astype(np.int32)


def _read_pair(file: Path) -> tuple | list:
    pair = cast(tuple | list, read_pickle(file, (tuple, list), "a file of FedBN"))
    if len(pair) != 2:
        raise InputError(f"{file} holds {len(pair)} arrays, not two. Download it again.")
    return pair


@validate_arguments
def office_caltech10(path: str, size: Count = 256, cache: str | None = None) -> Dataset:
    """Read Office-Caltech-10, ten classes from four sites: amazon, caltech, dslr and webcam.

    The images are <site>/<class>/<image>. The split is given by FedBN's pickles of (paths, class names) next to the
    sites, <site>_train.pkl and <site>_test.pkl. Without these files, all images are read, without a split.

    Args:
        path: The folder of the sites (office_caltech_10), or its parent.
        size: The side length to which images are resized (default 256, as in FedBN).
        cache: The cache folder for decoded images, see `folders`.

    Raises:
        InputError: Files are missing or have another format, or a class is unknown.

    References:
        Gong et al., Geodesic Flow Kernel for Unsupervised Domain Adaptation, CVPR 2012. The split: FedBN, ICLR 2021,
        arXiv:2102.07623
    """
    root = require_dataset(path, "Office-Caltech-10 in FedBN's files", _URL, _SITES[0], "office_caltech_10")
    sites = {site: root / site for site in _SITES if (root / site).is_dir()}
    notes = [f"skipped: {x.name}" for x in list_subfolders(root) if x.name not in sites]
    entries = [x for site, folder in sites.items() for x in list_domain_images(site, folder, notes)]
    _check_classes(entries)
    if list_entries(root, "_train.pkl"):
        entries = list(_apply_lists(root, sites, {entry.path: entry for entry in entries}))
    else:
        notes += ["no <site>_train.pkl beside the sites: no split of FedBN's"]
    return image_dataset(
        "office_caltech10",
        entries,
        size=size,
        cache=cache,
        class_names=_OBJECTS,
        notes=[*notes, *note_size(entries, _NUM_OBJECTS)],
    )


def _apply_lists(root: Path, sites: Mapping[str, Path], by_path: Mapping[str, ImageEntry]) -> Iterator[ImageEntry]:
    """The images of FedBN's lists with their split; a path in a list ends in <site>/<class>/<image>."""
    for site, folder in sites.items():
        for split in ("train", "test"):
            file = root / f"{site}_{split}.pkl"
            paths, labels = _read_pair(file)
            if len(paths) != len(labels):
                raise InputError(f"{file} lists {len(paths)} images and {len(labels)} classes. Download it again.")
            for path, label in zip(paths, labels, strict=True):
                entry = by_path.get(str(folder.joinpath(*Path(str(path)).parts[-2:])))
                if entry is None:
                    raise InputError(f"{file}: {path} is not in {folder}. Restore the image.")
                if entry.label != label:
                    raise InputError(f"{file}: {path} is listed as {label}, and lies in the folder {entry.label}.")
                yield entry._replace(split=split)


def _check_classes(entries: list[ImageEntry]) -> None:
    for entry in entries:
        if entry.label not in _OBJECTS:
            raise InputError(
                f"{Path(entry.path).parent} is no class of Office-Caltech-10. {nearest(entry.label, _OBJECTS)}"
            )

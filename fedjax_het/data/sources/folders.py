"""Image files in folders: <path>/<domain>/<class>/<image>, or <path>/<class>/<image>."""

from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image

from fedjax_het.data.dataset import Dataset, assemble
from fedjax_het.data.sources.reading import existing, reading
from fedjax_het.errors import InputError

_SUFFIXES = frozenset({".png", ".jpg", ".jpeg"})
_MODES = {1: "L", 3: "RGB"}
_DEEP_MODES = ("I", "F")  # more than 8 bits a pixel, which Pillow would clip and not scale


class _File(NamedTuple):
    domain: str
    label: str
    path: Path


def folders(path: str | Path, size: int | None = None, channels: int = 3, title: str | None = None) -> Dataset:
    """PNG and JPEG files in a folder for each domain and class; classes in alphabetical order.

    With `size` every image is resized to size x size (LANCZOS, the aspect ratio is not kept); without it all images
    must have one size. Images are converted to `channels`: 1 is grey, 3 is colour; grey among colour is repeated,
    transparency is dropped, a turn noted in EXIF is not made. A domain may lack a class. Hidden files and files of
    other kinds are passed over.
    Raises InputError for a class folder without images, a file that cannot be decoded, and mixed sizes.
    """
    path = existing(path)
    if channels not in _MODES:
        raise InputError(f"folders: channels is {channels}. Give 1 (grey) or 3 (colour).")
    if size is not None and size < 1:
        raise InputError(f"folders: size is {size}. Give the side in pixels, or leave it out.")
    files = _find(path)
    domain_names, domains = np.unique([file.domain for file in files], return_inverse=True)
    class_names, labels = np.unique([file.label for file in files], return_inverse=True)
    return assemble(
        title or path.name,
        _read_all([file.path for file in files], size, channels),
        labels,
        class_names=class_names.tolist(),
        domains=domains,
        domain_names=domain_names.tolist(),
    )


def _find(path: Path) -> list[_File]:
    if not path.is_dir():
        raise InputError(f"{path} is not a folder. Give one that holds <domain>/<class>/<image> or <class>/<image>.")
    if any(_subfolders(folder) for folder in _subfolders(path)):
        domains = [(domain.name, domain) for domain in _subfolders(path)]
    else:
        domains = [("all", path)]
    return [file for domain, folder in domains for file in _find_domain(domain, folder)]


def _find_domain(domain: str, folder: Path) -> list[_File]:
    if _images(folder):
        raise InputError(f"{folder} holds images that are in no class folder, as {_images(folder)[0].name}. Move them.")
    if not _subfolders(folder):
        raise InputError(f"{folder} has no class folders. Give <domain>/<class>/<image> or <class>/<image>.")
    files = []
    for each in _subfolders(folder):
        if not (images := _images(each)):
            raise InputError(f"{each} is a class folder without PNG or JPEG files. Fill it or remove it.")
        files += [_File(domain, each.name, image) for image in images]
    return files


def _subfolders(folder: Path) -> list[Path]:
    return sorted(each for each in folder.iterdir() if each.is_dir() and not each.name.startswith("."))


def _images(folder: Path) -> list[Path]:
    return sorted(
        each for each in folder.iterdir() if each.suffix.lower() in _SUFFIXES and not each.name.startswith(".")
    )


def _read_all(paths: list[Path], size: int | None, channels: int) -> np.ndarray:
    first = _read(paths[0], size, channels)
    images = np.empty((len(paths), *first.shape), np.uint8)
    for i, path in enumerate(paths):
        image = _read(path, size, channels)
        if image.shape != first.shape:
            raise InputError(
                f"{paths[0]} is {_extent(first)} and {path} is {_extent(image)} pixels. Give `size`, and all images "
                "are resized to it."
            )
        images[i] = image
    return images


def _read(path: Path, size: int | None, channels: int) -> np.ndarray:
    with reading(path), Image.open(path) as image:
        if image.mode.startswith(_DEEP_MODES):
            raise InputError(f"{path} has more than 8 bits a pixel (mode {image.mode}). Convert it to 8 bits.")
        image = image.convert(_MODES[channels])
        if size is not None:
            image = image.resize((size, size), Image.Resampling.LANCZOS)
        return np.asarray(image).reshape(image.height, image.width, channels)


def _extent(image: np.ndarray) -> str:
    height, width, _ = image.shape
    return f"{width} x {height}"

"""Image files in folders: <path>/<domain>/<class>/<image> or <path>/<class>/<image>, either with splits."""

import re
from collections.abc import Iterator
from pathlib import Path

from fedjax_het.data.dataset import Dataset
from fedjax_het.data.sources._image_listing import (
    ImageEntry,
    check_shared_classes,
    count_suffixes,
    find_splits,
    image_dataset,
    list_image_files,
    list_subfolders,
)
from fedjax_het.data.sources._io_errors import require_path
from fedjax_het.errors import InputError


def folders(
    path: str,
    size: int | None = None,
    channels: int | None = None,
    lone_classes: bool = False,
    title: str | None = None,
    cache: str | None = None,
) -> Dataset:
    """Read image files from one folder per domain and class; classes are in alphabetical order.

    Between domains and classes, or above the classes, there may be split folders (train; val, valid, validation or
    crossval; test), which become the published split. Other folders next to split folders and other files are skipped
    with a note. Hidden and system files (__MACOSX, Thumbs.db) are ignored.

    Args:
        path: The folder of the domains, or of the classes.
        size: The side length to which images are resized (LANCZOS, ignoring the aspect ratio). None: all images must
            have the same size.
        channels: 1 converts images to grayscale, 3 to color (repeating gray, dropping transparency). None: all images
            must have the same number of channels.
        lone_classes: Whether to accept a class that occurs in a single domain, usually a misspelled folder.
        title: The name of the data set (default: the name of the folder).
        cache: The cache folder for decoded images (default: in the user's cache folder).

    Raises:
        InputError: A class folder has no images, a file cannot be decoded, or sizes or channels are mixed.
    """
    root = require_path(path)
    notes = []
    name, entries = title or root.resolve().name, _list_images(root, notes)
    if not lone_classes:
        check_shared_classes(name, entries, alternative=", or set lone_classes")
    return image_dataset(name, entries, size=size, channels=channels, cache=cache, notes=notes)


def _list_images(path: Path, notes: list[str]) -> list[ImageEntry]:
    if not path.is_dir():
        raise InputError(f"{path} is not a folder. Give one that holds <domain>/<class>/<image> or <class>/<image>.")
    domains = {"all": path}
    if not find_splits(path, []) and any(map(list_subfolders, inside := list_subfolders(path))):
        domains = {folder.name: folder for folder in inside}
    return [entry for domain, folder in domains.items() for entry in list_domain_images(domain, folder, notes)]


def list_domain_images(domain: str, folder: Path, notes: list[str]) -> Iterator[ImageEntry]:
    """The images of a domain by split, class and name; folders that `find_splits` skips are added to `notes`."""
    for split, part in find_splits(folder, notes) or [("train", folder)]:
        yield from _list_class_images(domain, split, part)


def normalize_name(name: str) -> str:
    """Keep lowercased letters and digits: 'Real World', 'real_world' and 'RealWorld' are equal."""
    return re.sub(r"[^a-z0-9]", "", name.lower())


def _list_class_images(domain: str, split: str, folder: Path) -> Iterator[ImageEntry]:
    if stray := list_image_files(folder):
        raise InputError(
            f"{folder} holds images that are in no class folder, as {stray[0].name}. Move them, or give the source "
            "'table' a .csv of their labels."
        )
    if not (classes := list_subfolders(folder)):
        raise InputError(f"{folder} has no class folders. Give <domain>/<class>/<image> or <class>/<image>.")
    for path in classes:
        if not (images := list_image_files(path)):
            found = count_suffixes([path])
            raise InputError(
                f"{path} is a class folder without images{found and f', it holds {found}'}. Fill it or remove it."
            )
        yield from (ImageEntry(str(image), path.name, domain, split) for image in images)

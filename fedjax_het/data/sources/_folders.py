"""Image files in folders: <path>/<domain>/<class>/<image>, <path>/<class>/<image>, or either with splits."""

import re
from collections.abc import Iterator
from pathlib import Path

from fedjax_het.data.dataset import Dataset
from fedjax_het.data.sources._image_listing import SPLITS, ImageEntry, check_shared_classes, image_dataset
from fedjax_het.data.sources._images import IMAGE_SUFFIXES
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
    """Image files in a folder for each domain and class; classes in alphabetical order.

    Between a domain and its classes, or above the classes, there may be folders for splits: train; val, valid,
    validation or crossval; test. They become the data set's own split.
    size: every image is resized to size x size (LANCZOS, the aspect ratio is not kept); without it all must be alike.
    channels: 1 makes all grey, 3 all colour (grey is repeated, transparency dropped); without it all must be alike.
    lone_classes: a class may exist in one domain only; else that is refused, for it is mostly a misspelt folder.
    cache: the folder in which decoded images are kept, by default in the user's cache folder.
    Hidden files and files that are no images are passed over.
    Raises InputError for a class folder without images, a file that cannot be decoded, mixed sizes or channels.
    """
    root = require_path(path)
    name, entries = title or root.resolve().name, list_images(root)
    if not lone_classes:
        check_shared_classes(name, entries, otherwise=", or set lone_classes")
    return image_dataset(name, entries, size=size, channels=channels, cache=cache)


def list_images(path: Path) -> list[ImageEntry]:
    """Every image of <domain>/[<split>/]<class>/<image> or [<split>/]<class>/<image>, by domain, split, class, name."""
    if not path.is_dir():
        raise InputError(f"{path} is not a folder. Give one that holds <domain>/<class>/<image> or <class>/<image>.")
    inside = list_subfolders(path)
    is_single = _is_split(inside) or not any(list_subfolders(folder) for folder in inside)
    domains = [("all", path)] if is_single else [(folder.name, folder) for folder in inside]
    return [entry for domain, folder in domains for entry in list_domain_images(domain, folder)]


def list_domain_images(domain: str, folder: Path, ignored: str = "") -> Iterator[ImageEntry]:
    """The images of one domain; a folder called `ignored` is passed over."""
    if _is_split(inside := [each for each in list_subfolders(folder) if each.name != ignored]):
        for each in inside:
            yield from _list_class_images(domain, SPLITS[each.name.lower()], each)
    else:
        yield from _list_class_images(domain, "train", folder)


def list_subfolders(folder: Path) -> list[Path]:
    """Those that are not hidden, by name."""
    return sorted(each for each in folder.iterdir() if each.is_dir() and not each.name.startswith("."))


def list_image_files(folder: Path) -> list[Path]:
    """The image files that are not hidden, by name."""
    return sorted(
        each for each in folder.iterdir() if each.suffix.lower() in IMAGE_SUFFIXES and not each.name.startswith(".")
    )


def _is_split(inside: list[Path]) -> bool:
    return bool(inside) and all(folder.name.lower() in SPLITS for folder in inside)


def _list_class_images(domain: str, split: str, folder: Path) -> Iterator[ImageEntry]:
    if stray := list_image_files(folder):
        raise InputError(f"{folder} holds images that are in no class folder, as {stray[0].name}. Move them.")
    if not (classes := list_subfolders(folder)):
        raise InputError(f"{folder} has no class folders. Give <domain>/<class>/<image> or <class>/<image>.")
    for each in classes:
        if not (found := list_image_files(each)):
            raise InputError(f"{each} is a class folder without images. Fill it or remove it.")
        yield from (ImageEntry(str(image), each.name, domain, split) for image in found)


def normalize_name(name: str) -> str:
    """Letters and digits, small: 'Real World', 'real_world' and 'RealWorld' are one name."""
    return re.sub(r"[^a-z0-9]", "", name.lower())

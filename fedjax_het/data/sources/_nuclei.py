"""Nuclei in tissue: a folder a site with images and masks, in the forms in which the sites publish them."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

from fedjax_het.data.dataset import Dataset
from fedjax_het.data.sources._folders import images, subfolders
from fedjax_het.data.sources._image_listing import SPLITS
from fedjax_het.data.sources._images import SUFFIXES
from fedjax_het.data.sources._io_errors import require_dataset
from fedjax_het.data.sources._masks import ImageMaskPair, mask_dataset
from fedjax_het.data.sources._named_datasets import normalize_name
from fedjax_het.errors import InputError

_URLS = (
    "MoNuSAC 2020: https://monusac-2020.grand-challenge.org/Data, MoNuSeg 2018: "
    "https://monuseg.grand-challenge.org/Data/, TNBC: https://zenodo.org/record/1175282"
)
_IMAGES = ("images", "tissueimages")
_MASKS = ("masks", "annotations")


def nuclei(path: str, size: int | None = None, channels: int | None = 3, cache: str | None = None) -> Dataset:
    """Nuclei segmentation: <site>/..., classes background and nucleus, every site in one of these forms.

    - images/ and masks/ (or Annotations/), where a mask bears the name of its image: an image that is not 0 in nuclei,
      or Aperio XML whose polygons are filled (MoNuSeg: "Tissue Images" and Annotations);
    - Slide_<nn>/ and GT_<nn>/ with files of equal names (TNBC);
    - images with their XML beside them, in folders of any depth (MoNuSAC).
    A site may have train, val and test folders around that: its own split.
    size: images are resized to size x size (LANCZOS), masks by the nearest pixel. channels, cache: see `folders`.
    Raises InputError for an image without a mask, a mask without an image, and a mask of another size.
    Kumar et al. 2017; Naylor et al. 2018; Verma et al. 2021.
    """
    root = require_dataset(path, "Nuclei data", _URLS)
    pairs = [pair for site in subfolders(root) for pair in _find_site(site)] if root.is_dir() else []
    if not pairs:
        raise InputError(f"{root} holds no <site>/images/ with masks. Sites are published as {_URLS}")
    return mask_dataset(
        "nuclei", pairs, size=size, channels=channels, cache=cache, class_names=("background", "nucleus")
    )


def _find_site(site: Path) -> Iterator[ImageMaskPair]:
    inside = subfolders(site)
    if inside and all(folder.name.lower() in SPLITS for folder in inside):
        parts = [(SPLITS[folder.name.lower()], folder) for folder in inside]
    else:
        parts = [("train", site)]
    for split, folder in parts:
        for image, mask in _pairs(folder):
            yield ImageMaskPair(str(image), str(mask), site.name, split)


def _pairs(folder: Path) -> list[tuple[Path, Path]]:
    inside = {normalize_name(each.name): each for each in subfolders(folder)}
    of_images = next((inside[name] for name in _IMAGES if name in inside), None)
    of_masks = next((inside[name] for name in _MASKS if name in inside), None)
    slides = [each for each in inside.values() if each.name.lower().startswith("slide_")]
    if of_images and of_masks:
        return _matched(of_images, of_masks)
    if slides:
        return [pair for each in slides for pair in _matched(each, each.with_name("GT_" + each.name[len("slide_") :]))]
    beside = sorted(Path(each) for each, _, _ in os.walk(folder, onerror=_refuse))
    return [pair for each in beside for pair in _beside(each)]


def _refuse(error: OSError) -> NoReturn:
    raise error


def _matched(of_images: Path, of_masks: Path) -> list[tuple[Path, Path]]:
    """Pairs of equal stems; every file of either folder must have its partner."""
    masks = _by_stem(of_masks) if of_masks.is_dir() else {}
    pairs = []
    for image in images(of_images):
        if image.stem not in masks:
            raise InputError(f"{image} has no mask: {of_masks} holds no {image.stem}.* Add it, or remove the image.")
        pairs.append((image, masks.pop(image.stem)))
    if masks:
        raise InputError(f"{next(iter(masks.values()))} is a mask without an image in {of_images}. Remove it.")
    return pairs


def _by_stem(folder: Path) -> dict[str, Path]:
    """Mask images and XML by their stem; an image where there are both."""
    files = [each for each in sorted(folder.iterdir()) if each.suffix.lower() in {*SUFFIXES, ".xml"}]
    return {each.stem: each for each in sorted(files, key=lambda each: each.suffix.lower() != ".xml")}


def _beside(folder: Path) -> Iterator[tuple[Path, Path]]:
    annotations = {each.stem: each for each in folder.iterdir() if each.suffix.lower() == ".xml"}
    for image in images(folder):
        if image.stem not in annotations:
            raise InputError(f"{image} has no mask: {image.stem}.xml is not beside it. Add it, or remove the image.")
        yield image, annotations[image.stem]

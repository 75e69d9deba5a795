"""Segmentation data sets: pairs of an image and its mask, from several sites."""

import os
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, NoReturn

import numpy as np
from PIL import Image, ImageDraw

from fedjax_het.data.dataset import Dataset
from fedjax_het.data.sources._decode_cache import Chunk, decode_once
from fedjax_het.data.sources._folders import list_image_files, list_subfolders, normalize_name
from fedjax_het.data.sources._image_listing import SPLITS, assemble_by_name
from fedjax_het.data.sources._images import (
    IMAGE_SUFFIXES,
    decoding_options,
    read_image,
    read_mask,
    resize_image,
    resize_mask,
)
from fedjax_het.data.sources._io_errors import report_read_errors, require_dataset
from fedjax_het.errors import InputError


class ImageMaskPair(NamedTuple):
    """One image, and the file that its mask is made from: a mask image, or Aperio XML with polygons."""

    image: str
    mask: str
    site: str
    split: str  # "train", "valid", "test"


def mask_dataset(
    name: str,
    pairs: Sequence[ImageMaskPair],
    *,
    size: int | None,
    channels: int | None,
    cache: str | None,
    class_names: Sequence[str],
    notes: Sequence[str] = (),
) -> Dataset:
    """Decode pairs: images as `read_image` has them, masks [n, height, width] uint8 of 0 and 1, by the nearest pixel.

    Raises InputError for a mask of another size than its image, and as `read_image` and `decoded` do.
    """

    def read(pair: ImageMaskPair) -> Chunk:
        image = read_image(pair.image, None, channels)
        mask = _read_pair_mask(pair, image.shape[:2])
        return {"inputs": resize_image(image, size)[None], "labels": resize_mask(mask, size)[None]}

    files = [file for pair in pairs for file in (pair.image, pair.mask)]
    arrays = decode_once(name, pairs, read, files=files, options=decoding_options(size, channels), cache=cache)
    return assemble_by_name(
        name,
        arrays["inputs"],
        arrays["labels"],
        class_names=class_names,
        domains=[pair.site for pair in pairs],
        splits=[pair.split for pair in pairs],
        notes=notes,
    )


def _read_pair_mask(pair: ImageMaskPair, shape: tuple[int, int]) -> np.ndarray:
    if pair.mask.lower().endswith(".xml"):
        return fill_polygons(pair.mask, shape)
    mask = read_mask(pair.mask)
    if mask.shape != shape:
        raise InputError(
            f"{pair.mask} is {mask.shape[1]} x {mask.shape[0]} and its image {pair.image} is {shape[1]} x {shape[0]} "
            "pixels. Give every image a mask of its size."
        )
    return mask


def fill_polygons(path: str | Path, shape: tuple[int, int]) -> np.ndarray:
    """uint8 [height, width]: 1 inside every Region of an Aperio annotation (Regions/Region/Vertices/Vertex X, Y).

    Regions of fewer than three points enclose nothing. Raises InputError for XML that cannot be read or has no Region.
    """
    with report_read_errors(path):
        regions = list(ElementTree.parse(path).iter("Region"))
        polygons = [[(float(v.attrib["X"]), float(v.attrib["Y"])) for v in each.iter("Vertex")] for each in regions]
    if not regions:
        raise InputError(f"{path} has no Annotation/Regions/Region. Give the image a mask, or its annotation.")
    canvas = Image.new("L", (shape[1], shape[0]))
    draw = ImageDraw.Draw(canvas)
    for polygon in polygons:
        if len(polygon) > 2:
            draw.polygon(polygon, fill=1)
    return np.asarray(canvas)


_NUCLEI_URLS = (
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
    root = require_dataset(path, "Nuclei data", _NUCLEI_URLS)
    pairs = [pair for site in list_subfolders(root) for pair in _find_site(site)] if root.is_dir() else []
    if not pairs:
        raise InputError(f"{root} holds no <site>/images/ with masks. Sites are published as {_NUCLEI_URLS}")
    return mask_dataset(
        "nuclei", pairs, size=size, channels=channels, cache=cache, class_names=("background", "nucleus")
    )


def _find_site(site: Path) -> Iterator[ImageMaskPair]:
    inside = list_subfolders(site)
    if inside and all(folder.name.lower() in SPLITS for folder in inside):
        parts = [(SPLITS[folder.name.lower()], folder) for folder in inside]
    else:
        parts = [("train", site)]
    for split, folder in parts:
        for image, mask in _find_pairs(folder):
            yield ImageMaskPair(str(image), str(mask), site.name, split)


def _find_pairs(folder: Path) -> list[tuple[Path, Path]]:
    inside = {normalize_name(each.name): each for each in list_subfolders(folder)}
    of_images = next((inside[name] for name in _IMAGES if name in inside), None)
    of_masks = next((inside[name] for name in _MASKS if name in inside), None)
    slides = [each for each in inside.values() if each.name.lower().startswith("slide_")]
    if of_images and of_masks:
        return _match_by_stem(of_images, of_masks)
    if slides:
        return [
            pair for each in slides for pair in _match_by_stem(each, each.with_name("GT_" + each.name[len("slide_") :]))
        ]
    beside = sorted(Path(each) for each, _, _ in os.walk(folder, onerror=_raise))
    return [pair for each in beside for pair in _find_annotated_images(each)]


def _raise(error: OSError) -> NoReturn:
    raise error


def _match_by_stem(of_images: Path, of_masks: Path) -> list[tuple[Path, Path]]:
    """Pairs of equal stems; every file of either folder must have its partner."""
    masks = _list_masks(of_masks) if of_masks.is_dir() else {}
    pairs = []
    for image in list_image_files(of_images):
        if image.stem not in masks:
            raise InputError(f"{image} has no mask: {of_masks} holds no {image.stem}.* Add it, or remove the image.")
        pairs.append((image, masks.pop(image.stem)))
    if masks:
        raise InputError(f"{next(iter(masks.values()))} is a mask without an image in {of_images}. Remove it.")
    return pairs


def _list_masks(folder: Path) -> dict[str, Path]:
    """Mask images and XML by their stem; an image where there are both."""
    files = [each for each in sorted(folder.iterdir()) if each.suffix.lower() in {*IMAGE_SUFFIXES, ".xml"}]
    return {each.stem: each for each in sorted(files, key=lambda each: each.suffix.lower() != ".xml")}


def _find_annotated_images(folder: Path) -> Iterator[tuple[Path, Path]]:
    annotations = {each.stem: each for each in folder.iterdir() if each.suffix.lower() == ".xml"}
    for image in list_image_files(folder):
        if image.stem not in annotations:
            raise InputError(f"{image} has no mask: {image.stem}.xml is not beside it. Add it, or remove the image.")
        yield image, annotations[image.stem]

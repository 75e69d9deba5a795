"""Nuclei in tissue: a folder per site with images and masks, in the published layouts."""

import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image, ImageDraw

from fedjax_het.data.dataset import Dataset
from fedjax_het.data.sources._assembly import assemble_by_name
from fedjax_het.data.sources._decode_cache import Chunk, decode_once
from fedjax_het.data.sources._folders import normalize_name
from fedjax_het.data.sources._image_listing import (
    find_splits,
    list_entries,
    list_image_files,
    list_subfolders,
    note_skipped,
)
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

_URLS = (
    "MoNuSAC 2020: https://monusac-2020.grand-challenge.org/Data, MoNuSeg 2018: "
    "https://monuseg.grand-challenge.org/Data/, TNBC: https://zenodo.org/record/1175282"
)
_IMAGE_FOLDERS = ("images", "tissueimages")
_MASK_FOLDERS = ("masks", "annotations")


class _Pair(NamedTuple):
    """An image, and the file of its mask: a mask image, or Aperio XML with polygons."""

    image: str
    mask: str
    site: str
    split: str  # "train", "valid", "test"


def nuclei(path: str, size: int | None = None, channels: int | None = 3, cache: str | None = None) -> Dataset:
    """Read nuclei segmentation data, classes background and nucleus: <site>/..., each site in one of these layouts:

    - images/ and masks/ (or Annotations/), with equal file names: masks are images that are nonzero in nuclei (128 or
      more in JPEG and WebP files), or Aperio XML with polygons, which are filled (MoNuSeg: "Tissue Images" and
      Annotations);
    - Slide_<nn>/ and GT_<nn>/ with equal file names (TNBC);
    - images next to their XML files, in folders of any depth (MoNuSAC).

    A site may wrap these in train, val and test folders, its published splits.

    Args:
        path: The folder of the sites.
        size: The side length to which images (LANCZOS) and masks (nearest neighbor) are resized.
        channels: 1 converts images to grayscale, 3 to color. None: all must have the same number of channels.
        cache: The cache folder for decoded images, see `folders`.

    Raises:
        InputError: An image has no mask, a mask has no image, or their sizes differ.

    References:
        Kumar et al. 2017; Naylor et al. 2018; Verma et al. 2021.
    """
    root = require_dataset(path, "Nuclei data", _URLS)
    notes = []
    pairs = [pair for site in list_subfolders(root) for pair in _find_site_pairs(site, notes)]
    if not pairs:
        raise InputError(f"{root} holds no <site>/images/ with masks. Sites are published as {_URLS}")

    def read(pair: _Pair) -> Chunk:
        image = read_image(pair.image, None, channels)
        mask = _read_pair_mask(pair, image.shape[:2])
        return {"inputs": resize_image(image, size)[None], "labels": resize_mask(mask, size)[None]}

    files = [file for pair in pairs for file in (pair.image, pair.mask)]
    options = decoding_options(size, channels) | {"compressed_masks": 128}
    arrays = decode_once("nuclei", pairs, read, files=files, options=options, cache=cache)
    if num := sum(pair.mask.lower().endswith((".jpg", ".jpeg", ".webp")) for pair in pairs):
        notes.append(f"{num} masks are JPEG or WebP files: pixels of 128 or more are foreground")
    return assemble_by_name(
        "nuclei",
        arrays["inputs"],
        arrays["labels"],
        class_names=("background", "nucleus"),
        domains=[pair.site for pair in pairs],
        splits=[pair.split for pair in pairs],
        notes=[*notes, *note_skipped(files, *IMAGE_SUFFIXES, ".xml")],
    )


def _find_site_pairs(site: Path, notes: list[str]) -> Iterator[_Pair]:
    for split, folder in find_splits(site, notes) or [("train", site)]:
        for image, mask in _find_pairs(folder):
            yield _Pair(str(image), str(mask), site.name, split)


def _find_pairs(folder: Path) -> list[tuple[Path, Path]]:
    inside = {normalize_name(path.name): path for path in list_subfolders(folder)}
    images = next((inside[name] for name in _IMAGE_FOLDERS if name in inside), None)
    masks = next((inside[name] for name in _MASK_FOLDERS if name in inside), None)
    slides = [subfolder for subfolder in inside.values() if subfolder.name.lower().startswith("slide_")]
    if images and masks:
        return _match_by_stem(images, masks)
    if slides:
        mask_folders = {slide: slide.with_name("GT_" + slide.name[len("slide_") :]) for slide in slides}
        return [pair for slide in slides for pair in _match_by_stem(slide, mask_folders[slide])]
    below = [pair for subfolder in inside.values() for pair in _find_pairs(subfolder)]
    return [*_find_annotated_images(folder), *below]


def _match_by_stem(image_folder: Path, mask_folder: Path) -> list[tuple[Path, Path]]:
    """Pair files with equal stems; every file of either folder must have a partner."""
    candidates = [*list_entries(mask_folder, ".xml"), *list_image_files(mask_folder)]
    masks = {path.stem: path for path in candidates}  # a mask image takes precedence over XML
    pairs = []
    for image in list_image_files(image_folder):
        if image.stem not in masks:
            raise InputError(f"{image} has no mask: {mask_folder} holds no {image.stem}.* Add it, or remove the image.")
        pairs.append((image, masks.pop(image.stem)))
    if masks:
        raise InputError(f"{next(iter(masks.values()))} is a mask without an image in {image_folder}. Remove it.")
    return pairs


def _find_annotated_images(folder: Path) -> Iterator[tuple[Path, Path]]:
    """Pair every image with the XML of its stem in the same folder."""
    annotations = {path.stem: path for path in list_entries(folder, ".xml")}
    for image in list_image_files(folder):
        if image.stem not in annotations:
            raise InputError(f"{image} has no mask: {image.stem}.xml is not beside it. Add it, or remove the image.")
        yield image, annotations[image.stem]


def _read_pair_mask(pair: _Pair, shape: tuple[int, int]) -> np.ndarray:
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

    Regions with fewer than three points are skipped.
    """
    with report_read_errors(path):
        regions = list(ElementTree.parse(path).iter("Region"))
        polygons = [[(float(v.attrib["X"]), float(v.attrib["Y"])) for v in region.iter("Vertex")] for region in regions]
    if not regions:
        raise InputError(f"{path} has no Annotation/Regions/Region. Give the image a mask, or its annotation.")
    canvas = Image.new("L", (shape[1], shape[0]))
    draw = ImageDraw.Draw(canvas)
    for polygon in polygons:
        if len(polygon) > 2:
            draw.polygon(polygon, fill=1)
    return np.asarray(canvas)

"""Segmentation data sets: pairs of an image and its mask, from several sites."""

import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image, ImageDraw

from fedjax_het.data.dataset import Dataset
from fedjax_het.data.sources._decode_cache import Chunk, decode_once
from fedjax_het.data.sources._image_listing import sort_by_domain
from fedjax_het.data.sources._images import image_options, read_image, read_mask, resize, resize_mask
from fedjax_het.data.sources._io_errors import reporting_read_errors
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
        mask = _mask(pair, image.shape[:2])
        return {"inputs": resize(image, size)[None], "labels": resize_mask(mask, size)[None]}

    files = [file for pair in pairs for file in (pair.image, pair.mask)]
    arrays = decode_once(name, pairs, read, files=files, options=image_options(size, channels), cache=cache)
    return sort_by_domain(
        name,
        arrays["inputs"],
        arrays["labels"],
        class_names=class_names,
        domains=[pair.site for pair in pairs],
        splits=[pair.split for pair in pairs],
        notes=notes,
    )


def _mask(pair: ImageMaskPair, shape: tuple[int, int]) -> np.ndarray:
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
    with reporting_read_errors(path):
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

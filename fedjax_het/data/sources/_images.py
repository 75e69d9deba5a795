"""One image file, one mask, one array of images: to uint8, of the size and the channels that are asked for."""

import warnings
from pathlib import Path
from typing import BinaryIO

import numpy as np
import PIL
from PIL import Image

from fedjax_het._internal.machine_memory import describe_bytes, host_memory
from fedjax_het.data.sources._io_errors import report_read_errors
from fedjax_het.errors import InputError
from fedjax_het.validation import Count, validate_arguments

IMAGE_SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".tif", ".tiff"})
_MODES = {1: "L", 3: "RGB"}
_GREY = ("1", "L", "LA", "La")
warnings.filterwarnings("ignore", category=Image.DecompressionBombWarning)  # `_opened` refuses what it is about
_DEEP = ("I", "F")  # modes of more than 8 bits a pixel, which Pillow would clip and not scale


@validate_arguments
def decoding_options(size: Count | None, channels: int | None) -> dict[str, object]:
    """What decoding depends on, for the hash of the cache. Raises InputError for what cannot be."""
    if channels not in (*_MODES, None):
        raise InputError(f"channels is {channels}. Give 1 (grey), 3 (colour), or leave it out.")
    return {"size": size, "channels": channels, "resize": "lanczos", "masks": "nearest", "pillow": PIL.__version__}


def read_image(path: str | Path, size: int | None, channels: int | None) -> np.ndarray:
    """uint8 [height, width, channel].

    size: resized to size x size with LANCZOS, the aspect ratio is not kept; None: as it is.
    channels: 3 repeats grey and drops transparency, 1 takes the luminance; None: 1 for grey files, 3 for others.
    A turn noted in EXIF is not made, as in the papers' code.
    Raises InputError for a file that cannot be decoded, or has more than 8 bits a pixel.
    """
    with report_read_errors(path):
        return decode_image(path, str(path), size, channels)


def decode_image(file: str | Path | BinaryIO, origin: str, size: int | None, channels: int | None) -> np.ndarray:
    """As `read_image`, from a file that may be open; `origin` is what messages call it."""
    with _open_image(file, origin) as image:
        if image.mode.startswith(_DEEP):
            raise InputError(f"{origin} has more than 8 bits a pixel (mode {image.mode}). Convert it to 8 bits.")
        return _to_array(image, size, channels)


def _open_image(file: str | Path | BinaryIO, origin: str) -> Image.Image:
    """An image whose pixels are not decoded yet. Raises InputError for one of more than Pillow's limit."""
    try:
        image = Image.open(file)
        num_pixels = image.width * image.height
    except Image.DecompressionBombError as error:
        raise _too_large(origin, f"more than {2 * Image.MAX_IMAGE_PIXELS:,} pixels") from error
    if num_pixels > Image.MAX_IMAGE_PIXELS:
        raise _too_large(origin, f"{image.width} x {image.height} pixels")
    return image


def _too_large(origin: str, size: str) -> InputError:
    limit = Image.MAX_IMAGE_PIXELS
    return InputError(
        f"{origin} is too large ({size}; at most {limit:,} are decoded). Cut or scale it down beforehand."
    )


def read_mask(path: str | Path) -> np.ndarray:
    """uint8 [height, width]: 1 where any channel is not 0 (transparency does not count), 0 elsewhere."""
    with report_read_errors(path), _open_image(path, str(path)) as image:
        bands = np.asarray(image if image.mode.startswith((*_DEEP, "P")) else image.convert("RGB"))
    return (bands.reshape(*bands.shape[:2], -1) != 0).any(axis=-1).astype(np.uint8)


def resize_image(image: np.ndarray, size: int | None) -> np.ndarray:
    """uint8 [height, width, channel] as `read_image` resizes it."""
    return image if size is None else conform_images(image[None], size, image.shape[2])[0]


def resize_mask(mask: np.ndarray, size: int | None) -> np.ndarray:
    """By the nearest pixel, so that classes stay classes."""
    if size is None:
        return mask
    return np.asarray(Image.fromarray(mask).resize((size, size), Image.Resampling.NEAREST))


def check_space(num_images: int, size: int | None, channels: int | None, room: int, where: str) -> None:
    """Raise InputError where so many images, resized, would take more than `room` bytes `where`."""
    if size is not None and (needed := num_images * size**2 * (channels or 1)) > room:
        raise InputError(
            f"size: {num_images} images of {size} x {size} pixels take {describe_bytes(needed)}, and {where} has "
            f"{describe_bytes(room)}. Give a smaller side."
        )


def conform_images(images: np.ndarray, size: int | None, channels: int | None) -> np.ndarray:
    """Images [n, h, w] or [n, h, w, c] that came as an array: each as `read_image` would have it.

    Raises InputError where they are not uint8 with 1 or 3 channels.
    """
    if size is None and channels is None:
        return images
    if images.dtype != np.uint8 or images.ndim not in (3, 4) or images.shape[3:] not in ((), (1,), (3,)):
        raise InputError(
            f"size and channels are for uint8 images [n, height, width] or [n, height, width, 1 or 3], not for "
            f"{images.dtype} {images.shape}. Leave them out."
        )
    check_space(
        len(images), size, channels or (3 if images.shape[3:] == (3,) else 1), host_memory(), "this machine's memory"
    )
    squeezed = images[..., 0] if images.shape[3:] == (1,) else images
    return np.stack([_to_array(Image.fromarray(image), size, channels) for image in squeezed])


def _to_array(image: Image.Image, size: int | None, channels: int | None) -> np.ndarray:
    channels = channels or (1 if image.mode in _GREY else 3)
    image = image.convert(_MODES[channels])
    if size is not None:
        image = image.resize((size, size), Image.Resampling.LANCZOS)
    return np.asarray(image).reshape(image.height, image.width, channels)

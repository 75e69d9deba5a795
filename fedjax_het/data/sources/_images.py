"""Decoding of image and mask files, and conversion of image arrays to uint8 with a given size and channels."""

import sys
import warnings
from pathlib import Path
from typing import IO, Any

import numpy as np
import PIL
from PIL import Image

from fedjax_het._internal.machine_memory import describe_bytes, host_memory
from fedjax_het.data.dataset import check_channels_last
from fedjax_het.data.sources._io_errors import report_read_errors
from fedjax_het.errors import InputError
from fedjax_het.validation import Count, validate_arguments

IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".tif", ".tiff", ".webp", ".ppm", ".pgm")
_MODES = {1: "L", 3: "RGB"}
_GREY_MODES = ("1", "L", "LA", "La")
_DEEP_MODES = ("I", "F")  # more than 8 bits per pixel, which Pillow clips instead of scaling
warnings.filterwarnings("ignore", category=Image.DecompressionBombWarning)  # `_open_image` raises an error instead


@validate_arguments
def decoding_options(size: Count | None, channels: int | None) -> dict[str, Any]:
    """Check the decoding options, and list everything that decoding depends on, for the cache key."""
    if channels not in (*_MODES, None):
        raise InputError(f"channels: must be 1 (grey) or 3 (color), not {channels}. Or leave it out.")
    return {"size": size, "channels": channels, "resize": "lanczos", "masks": "nearest", "pillow": PIL.__version__}


def read_image(path: str | Path, size: int | None, channels: int | None) -> np.ndarray:
    """Decode an image file to uint8 [height, width, channel].

    EXIF rotations are not applied, as in the papers' code.

    Args:
        path: The file.
        size: The side length to resize to (LANCZOS, ignoring the aspect ratio); None: no resizing.
        channels: 3 repeats gray and drops transparency, 1 is luminance; None: 1 for grayscale files, 3 for others.

    Raises:
        InputError: The file cannot be decoded, contains several images, or has more than 8 bits per pixel.
    """
    with report_read_errors(path):
        return decode_image(path, str(path), size, channels)


def decode_image(file: str | Path | IO[bytes], origin: str, size: int | None, channels: int | None) -> np.ndarray:
    """`read_image` for a path or an open file; `origin` is its name in error messages."""
    with _open_image(file, origin) as image:
        if image.mode.startswith(_DEEP_MODES):
            raise InputError(f"{origin} has more than 8 bits per pixel (mode {image.mode}). Convert it to 8 bits.")
        return _to_array(image, size, channels)


def _open_image(file: str | Path | IO[bytes], origin: str) -> Image.Image:
    """Open an image without decoding it; raise InputError for multiple images or more pixels than Pillow's limit."""
    limit = Image.MAX_IMAGE_PIXELS or sys.maxsize
    try:
        image = Image.open(file)
        extent = f"{image.width} x {image.height} pixels"
        if image.width * image.height <= limit:
            if (num := getattr(image, "n_frames", 1)) > 1 and image.format != "MPO":  # whose other images are previews
                raise InputError(f"{origin} holds {num} images. Save each in a file of its own.")
            return image
    except Image.DecompressionBombError:
        extent = f"more than {2 * limit:,} pixels"
    raise InputError(
        f"{origin} is too large ({extent}; at most {limit:,} are decoded). Cut or scale it down beforehand."
    )


def read_mask(path: str | Path) -> np.ndarray:
    """Decode a mask file to uint8 [height, width]: 1 where any channel except transparency is nonzero, else 0.

    For JPEG and WebP files, whose compression blurs edges, the threshold is 128.

    Raises:
        InputError: The file cannot be decoded, or a JPEG or WebP file is not black and white.
    """
    with report_read_errors(path), _open_image(path, str(path)) as image:
        bands = np.asarray(image if image.mode.startswith((*_DEEP_MODES, "P")) else image.convert("RGB"))
        is_lossy = image.format in ("JPEG", "WEBP")
    values = np.max(bands.reshape(*bands.shape[:2], -1), axis=-1)
    if is_lossy:
        num_grey, num_white = int(((values >= 64) & (values < 192)).sum()), int((values >= 192).sum())
        if num_grey > num_white or (values.any() and values.max() < 128):
            raise InputError(
                f"{path} is compressed and not black and white: it has {num_grey} grey pixels and {num_white} white "
                f"ones, up to {values.max()}. Save the mask as PNG."
            )
    return np.asarray(values >= 128 if is_lossy else values != 0, np.uint8)


def resize_image(image: np.ndarray, size: int | None) -> np.ndarray:
    """Resize uint8 [height, width, channel] as in `read_image`."""
    return image if size is None else conform_images(image[None], size, image.shape[2])[0]


def resize_mask(mask: np.ndarray, size: int | None) -> np.ndarray:
    """Resize [height, width] with nearest-neighbor interpolation, which preserves classes."""
    if size is None:
        return mask
    return np.asarray(Image.fromarray(mask).resize((size, size), Image.Resampling.NEAREST))


def check_space(num_images: int, size: int | None, channels: int | None, space: int, where: str) -> None:
    """Raise InputError if the resized images take more than `space` bytes."""
    if size is not None and (needed := num_images * size**2 * (channels or 1)) > space:
        raise InputError(
            f"size: {num_images} images of {size} x {size} pixels take {describe_bytes(needed)}, and {where} has "
            f"{describe_bytes(space)}. Give a smaller size."
        )


def conform_images(images: np.ndarray, size: int | None, channels: int | None) -> np.ndarray:
    """Convert an array of images [n, height, width] or [n, height, width, channel] like `read_image`."""
    if size is None and channels is None:
        return images
    check_channels_last("size and channels", images)
    if images.dtype != np.uint8 or images.ndim not in (3, 4) or images.shape[3:] not in ((), (1,), (3,)):
        raise InputError(
            f"size and channels are for uint8 images [n, height, width] or [n, height, width, 1 or 3], not for "
            f"{images.dtype} {images.shape}. Leave them out."
        )
    own_channels = 3 if images.shape[3:] == (3,) else 1
    check_space(len(images), size, channels or own_channels, host_memory(), "this machine's memory")
    squeezed = images[..., 0] if images.shape[3:] == (1,) else images
    return np.stack([_to_array(Image.fromarray(image), size, channels) for image in squeezed])


def _to_array(image: Image.Image, size: int | None, channels: int | None) -> np.ndarray:
    channels = channels or (1 if image.mode in _GREY_MODES else 3)
    image = image.convert(_MODES[channels])
    if size is not None:
        image = image.resize((size, size), Image.Resampling.LANCZOS)
    return np.asarray(image).reshape(image.height, image.width, channels)

"""Examples that lie on the disk as arrays, in whichever of the usual forms."""

import gzip
import math
import struct
from dataclasses import replace
from pathlib import Path

import numpy as np

from fedjax_het.data.dataset import Dataset, assemble
from fedjax_het.data.sources._cifar import cifar_directory, cifar_layout
from fedjax_het.data.sources._images import conform_images, image_options
from fedjax_het.data.sources._io_errors import reporting_read_errors, require_path
from fedjax_het.data.sources._npz import npz_directory, npz_file
from fedjax_het.errors import InputError


def arrays(path: str, title: str | None = None, size: int | None = None, channels: int | None = None) -> Dataset:
    """Read arrays in the form that is found at `path`.

    - a .npz file: `images` with `labels` or `masks`; or the same for parts, `train_images`, `train_labels`, ..., where
      parts called train, valid and test are splits, and others domains;
    - a directory of .npz files: a domain each, called after its file;
    - a directory with MNIST's idx files, plain or .gz;
    - a directory with the python or the binary batches of CIFAR-10 or CIFAR-100.
    `title` is the name of the data set, by default that of the file or directory. size: uint8 images are resized to
    size x size (LANCZOS; masks by the nearest pixel); channels: 1 makes them grey, 3 colour. Both bring domains that
    differ to one form.
    Raises InputError where nothing of the kind is found, and as the readers of these forms do.
    """
    path = require_path(path)
    image_options(size, channels)
    if path.is_file() and path.suffix == ".npz":
        return npz_file(path, title, size, channels)
    if path.is_dir():
        if any(path.glob("*.npz")):
            return npz_directory(path, title, size, channels)
        if any((path / f"{TRAIN_IMAGES}{suffix}").exists() for suffix in ("", ".gz")):
            return _conformed(idx_directory(path, title), size, channels)
        if cifar_layout(path):
            return _conformed(cifar_directory(path, title), size, channels)
    raise InputError(
        f"{path} holds no arrays that can be read. Looked for: a .npz file; or in a directory *.npz, "
        f"{TRAIN_IMAGES}[.gz], data_batch_1[.bin] and train[.bin]. Point `path` at the directory that holds them, "
        "or use the source 'folders' for image files."
    )


def _conformed(dataset: Dataset, size: int | None, channels: int | None) -> Dataset:
    return replace(dataset, inputs=conform_images(dataset.inputs, size, channels))


TRAIN_IMAGES = "train-images-idx3-ubyte"
_FILES = ((TRAIN_IMAGES, "train-labels-idx1-ubyte"), ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"))
_UNSIGNED_BYTES = 0x08


def idx_directory(path: Path, title: str | None = None) -> Dataset:
    """The four files of MNIST, plain or .gz, by their original names; t10k is the data set's own test split.

    Raises InputError for a file that is missing, damaged, cut short, or does not hold unsigned bytes.
    """
    images, labels = zip(*[[_read_idx(_find_idx(path, file)) for file in pair] for pair in _FILES], strict=True)
    num_train = len(images[0])
    inputs = np.concatenate(images)
    return assemble(title or path.name, inputs, np.concatenate(labels), is_test=np.arange(len(inputs)) >= num_train)


def _find_idx(path: Path, file: str) -> Path:
    compressed = path / f"{file}.gz"
    return compressed if compressed.exists() else path / file


def _read_idx(path: Path) -> np.ndarray:
    with reporting_read_errors(path):
        data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        zeros, kind, num_axes = struct.unpack_from(">HBB", data)
        if zeros != 0 or kind != _UNSIGNED_BYTES:
            raise InputError(f"{path} is not an idx file of unsigned bytes: it begins with {data[:4].hex()}.")
        shape = struct.unpack_from(f">{num_axes}I", data, offset=4)
        start = 4 + 4 * num_axes
        if len(data) - start != math.prod(shape):
            raise InputError(
                f"{path} announces {math.prod(shape)} bytes of shape {shape} and holds {len(data) - start}. "
                "It is cut short or damaged; fetch it again."
            )
        return np.frombuffer(data, np.uint8, offset=start).reshape(shape)

"""MNIST's idx files: magic number, big-endian sizes, bytes. EMNIST, KMNIST and Fashion-MNIST use them too."""

import gzip
import math
import struct
from pathlib import Path

import numpy as np

from fedjax_het.data.dataset import Dataset, assemble
from fedjax_het.data.sources.reading import reading
from fedjax_het.errors import InputError

TRAIN_IMAGES = "train-images-idx3-ubyte"
_FILES = ((TRAIN_IMAGES, "train-labels-idx1-ubyte"), ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"))
_UNSIGNED_BYTES = 0x08


def idx_directory(path: Path, title: str | None = None) -> Dataset:
    """The four files of MNIST, plain or .gz, by their original names; t10k is the data set's own test split.

    Raises InputError for a file that is missing, damaged, cut short, or does not hold unsigned bytes.
    """
    images, labels = zip(*[[_read(_find(path, file)) for file in pair] for pair in _FILES], strict=True)
    num_train = len(images[0])
    inputs = np.concatenate(images)
    return assemble(title or path.name, inputs, np.concatenate(labels), is_test=np.arange(len(inputs)) >= num_train)


def _find(path: Path, file: str) -> Path:
    compressed = path / f"{file}.gz"
    return compressed if compressed.exists() else path / file


def _read(path: Path) -> np.ndarray:
    with reading(path):
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

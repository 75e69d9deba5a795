"""Examples that lie on the disk as arrays, in whichever of the usual forms."""

import gzip
import io
import math
import pickle
import struct
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedjax_het.data.dataset import Dataset, assemble
from fedjax_het.data.sources._images import conform_images, decoding_options
from fedjax_het.data.sources._io_errors import report_read_errors, require_path
from fedjax_het.data.sources._npz import read_npz_directory, read_npz_file
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
    decoding_options(size, channels)
    if path.is_file() and path.suffix == ".npz":
        return read_npz_file(path, title, size, channels)
    if path.is_dir():
        if any(path.glob("*.npz")):
            return read_npz_directory(path, title, size, channels)
        if any((path / f"{_TRAIN_IMAGES}{suffix}").exists() for suffix in ("", ".gz")):
            return _conform(_read_idx_directory(path, title), size, channels)
        if _find_cifar_layout(path):
            return _conform(_read_cifar(path, title), size, channels)
    raise InputError(
        f"{path} holds no arrays that can be read. Looked for: a .npz file; or in a directory *.npz, "
        f"{_TRAIN_IMAGES}[.gz], data_batch_1[.bin] and train[.bin]. Point `path` at the directory that holds them, "
        "or use the source 'folders' for image files."
    )


def _conform(dataset: Dataset, size: int | None, channels: int | None) -> Dataset:
    return replace(dataset, inputs=conform_images(dataset.inputs, size, channels))


_TRAIN_IMAGES = "train-images-idx3-ubyte"
_IDX_FILES = ((_TRAIN_IMAGES, "train-labels-idx1-ubyte"), ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"))
_UNSIGNED_BYTES = 0x08


def _read_idx_directory(path: Path, title: str | None = None) -> Dataset:
    """The four files of MNIST, plain or .gz, by their original names; t10k is the data set's own test split.

    Raises InputError for a file that is missing, damaged, cut short, or does not hold unsigned bytes.
    """
    images, labels = zip(*[[_read_idx(_find_idx(path, file)) for file in pair] for pair in _IDX_FILES], strict=True)
    num_train = len(images[0])
    inputs = np.concatenate(images)
    return assemble(title or path.name, inputs, np.concatenate(labels), is_test=np.arange(len(inputs)) >= num_train)


def _find_idx(path: Path, file: str) -> Path:
    compressed = path / f"{file}.gz"
    return compressed if compressed.exists() else path / file


def _read_idx(path: Path) -> np.ndarray:
    with report_read_errors(path):
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


_CIFAR_PIXELS = 3 * 32 * 32


class _CifarLayout(NamedTuple):
    train: tuple[str, ...]
    test: str
    names: str  # the file with the class names
    key: bytes  # python: the labels' key, "fine_labels"; the names' key is "fine_label_names"
    num_label_bytes: int  # binary: bytes before the pixels, the last of which is the label


_TEN, _HUNDRED = tuple(f"data_batch_{i}" for i in range(1, 6)), ("train",)
_CIFAR_PYTHON = (
    _CifarLayout(_TEN, "test_batch", "batches.meta", b"label", 0),
    _CifarLayout(_HUNDRED, "test", "meta", b"fine_label", 0),
)
_CIFAR_BINARY = (
    _CifarLayout(tuple(f"{each}.bin" for each in _TEN), "test_batch.bin", "batches.meta.txt", b"", 1),
    _CifarLayout(("train.bin",), "test.bin", "fine_label_names.txt", b"", 2),
)


def _find_cifar_layout(path: Path) -> _CifarLayout | None:
    """The layout whose first training file lies in `path`."""
    return next((layout for layout in _CIFAR_PYTHON + _CIFAR_BINARY if (path / layout.train[0]).is_file()), None)


def _read_cifar(path: Path, title: str | None = None) -> Dataset:
    """All training batches, and the test batch as the data set's own test split; fine labels of CIFAR-100.

    Class names come from the file beside the batches; binary batches may lack it, and then are "0", "1", ...
    Python batches are unpickled with nothing but arrays and containers admitted.
    Raises InputError for a batch that is missing, damaged, cut short, or wants to build anything else.
    """
    layout = _find_cifar_layout(path)
    read = _read_cifar_binary if layout in _CIFAR_BINARY else _read_cifar_python
    pixels, labels = zip(*[read(path / file, layout) for file in (*layout.train, layout.test)], strict=True)
    num = sum(len(each) for each in labels)
    images = np.concatenate(pixels).reshape(num, 3, 32, 32).transpose(0, 2, 3, 1)
    return assemble(
        title or path.name,
        np.ascontiguousarray(images),
        np.concatenate(labels),
        class_names=_read_cifar_names(path, layout),
        is_test=np.arange(num) >= num - len(labels[-1]),
    )


def _read_cifar_binary(path: Path, layout: _CifarLayout) -> tuple[np.ndarray, np.ndarray]:
    with report_read_errors(path):
        data = np.fromfile(path, np.uint8)
    size = layout.num_label_bytes + _CIFAR_PIXELS
    if len(data) == 0 or len(data) % size:
        raise InputError(f"{path} holds {len(data)} bytes, not a multiple of {size}. It is cut short; fetch it again.")
    records = data.reshape(-1, size)
    return records[:, layout.num_label_bytes :], records[:, layout.num_label_bytes - 1].astype(np.int32)


def _read_cifar_python(path: Path, layout: _CifarLayout) -> tuple[np.ndarray, np.ndarray]:
    batch = _unpickle(path)
    with report_read_errors(path):
        pixels, labels = np.asarray(batch[b"data"]), np.asarray(batch[layout.key + b"s"])
    if pixels.dtype != np.uint8 or pixels.shape != (len(labels), _CIFAR_PIXELS):
        raise InputError(
            f"{path}: data is {pixels.dtype} {pixels.shape} for {len(labels)} labels, not [n, {_CIFAR_PIXELS}]."
        )
    return pixels, labels


def _read_cifar_names(path: Path, layout: _CifarLayout) -> list[str] | None:
    if layout in _CIFAR_PYTHON:
        names = _unpickle(path / layout.names)
        with report_read_errors(path / layout.names):
            return [each.decode() for each in names[layout.key + b"_names"]]
    return (path / layout.names).read_text().split() if (path / layout.names).exists() else None


class _ArrayUnpickler(pickle.Unpickler):
    """A pickle may ask for any function to be called; this one answers only what numpy's arrays need."""

    _ADMITTED = {
        ("multiarray", "_reconstruct"): np._core.multiarray._reconstruct,
        ("numeric", "_frombuffer"): np._core.numeric._frombuffer,
        ("numpy", "ndarray"): np.ndarray,
        ("numpy", "dtype"): np.dtype,
        ("_codecs", "encode"): lambda text, codec: text.encode("latin1"),  # how python 3 writes bytes for python 2
    }

    def find_class(self, module: str, name: str) -> object:
        short = module.removeprefix("numpy.core.").removeprefix("numpy._core.")
        if (short, name) not in self._ADMITTED:
            raise pickle.UnpicklingError(f"it wants to use {module}.{name}, which a batch of images has no need of")
        return self._ADMITTED[short, name]


def _unpickle(path: Path) -> dict:
    with report_read_errors(path):
        try:
            batch = _ArrayUnpickler(io.BytesIO(path.read_bytes()), encoding="bytes").load()
        except (pickle.UnpicklingError, TypeError, AttributeError) as error:
            raise InputError(f"cannot read {path} as a CIFAR python batch: {error}. Fetch it again.") from error
    if not isinstance(batch, dict):
        raise InputError(f"cannot read {path} as a CIFAR python batch: it holds a {type(batch).__name__}, not a dict.")
    return batch

"""Arrays on disk: .npz files, MNIST's idx files, CIFAR-10 and CIFAR-100 batches, and pickles."""

import io
import math
import pickle
import struct
from pathlib import Path
from typing import Literal, NamedTuple, cast

import numpy as np

from fedjax_het._internal.regular_files import read_regular
from fedjax_het.data.dataset import Dataset
from fedjax_het.data.sources._assembly import Part, assemble_parts
from fedjax_het.data.sources._image_listing import list_entries
from fedjax_het.data.sources._images import decoding_options
from fedjax_het.data.sources._io_errors import report_read_errors, require_path
from fedjax_het.data.sources._npz import read_npz_directory, read_npz_file
from fedjax_het.errors import InputError
from fedjax_het.validation import refuse_without_effect, validate_arguments

ArrayKind = Literal["classes", "tags", "ranks", "numbers", "times"]


@validate_arguments
def arrays(
    path: str,
    title: str | None = None,
    size: int | None = None,
    channels: int | None = None,
    kind: ArrayKind | None = None,
) -> Dataset:
    """Read arrays in one of these forms:

    - a .npz file with `images` and `labels` or `masks`; or with several parts, `train_images`, `train_labels`, ...,
      where the parts train, valid and test are splits, and others are domains; x_train and y_train, X and y, data and
      targets, ... are also recognized;
    - a directory of .npz files, one per domain, which is named after the file;
    - a directory with MNIST's idx files, plain or .gz;
    - a directory with the Python or binary batches of CIFAR-10 or CIFAR-100 (fine labels).

    Args:
        path: The file or directory.
        title: The name of the data set (default: the name of the file or directory).
        size: The side length to which uint8 images (LANCZOS) and masks (nearest neighbor) are resized.
        channels: 1 converts uint8 images to grayscale, 3 to color.
        kind: The kind of labels in .npz files: "classes", "tags", "ranks", "numbers" or "times", see
            `fedjax_het.data.assemble`. None: by their shape and values.

    Raises:
        InputError: The path contains none of these; a file is damaged, incomplete or lacks an array; parts or domains
            differ in shape or type.
    """
    place = require_path(path)
    decoding_options(size, channels)
    if place.is_file() and place.suffix == ".npz":
        return read_npz_file(place, title, size, channels, kind)
    if list_entries(place, ".npz"):
        return read_npz_directory(place, title, size, channels, kind)
    refuse_without_effect(arrays, "for images with one class each", kind=kind)
    name = title or place.name
    if any((place / f"{_IDX_FILES[0][1]}{suffix}").exists() for suffix in ("", ".gz")):
        parts = [
            Part(images, _read_idx(place, images), _read_idx(place, labels), split)
            for split, images, labels in _IDX_FILES
        ]
        return assemble_parts(name, parts, size, channels)
    if layout := next((candidate for candidate in _CIFAR_LAYOUTS if (place / candidate.train[0]).is_file()), None):
        read = _read_cifar_binary if layout.num_label_bytes else _read_cifar_python
        files = [*(("train", file) for file in layout.train), ("test", layout.test)]
        parts = [Part(file, *read(place / file, layout), split) for split, file in files]
        return assemble_parts(name, parts, size, channels, class_names=_read_cifar_names(place / layout.names, layout))
    raise InputError(
        f"{place} holds no arrays that can be read. Looked for: a .npz file; or in a directory *.npz, "
        f"{_IDX_FILES[0][1]}[.gz], data_batch_1[.bin] and train[.bin]. Give the path of the directory that holds them, "
        "or use the source 'folders' for image files."
    )


# ---- MNIST -----------------------------------------------------------------------------------------------------------
_IDX_FILES = (
    ("train", "train-images-idx3-ubyte", "train-labels-idx1-ubyte"),
    ("test", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"),
)
_UNSIGNED_BYTES = 0x08


def _read_idx(folder: Path, file: str) -> np.ndarray:
    path = folder / f"{file}.gz"
    path = path if path.exists() else folder / file
    with report_read_errors(path):
        data = read_regular(path)
        zeros, kind, num_axes = struct.unpack_from(">HBB", data)
        if zeros != 0 or kind != _UNSIGNED_BYTES:
            raise InputError(f"{path} is not an idx file of unsigned bytes: it begins with {data[:4].hex()}.")
        shape = struct.unpack_from(f">{num_axes}I", data, offset=4)
        start = 4 + 4 * num_axes
        if len(data) - start != math.prod(shape):
            raise InputError(
                f"{path} announces {math.prod(shape)} bytes of shape {shape} and holds {len(data) - start}. "
                "It is cut short or damaged; download it again."
            )
        return np.frombuffer(data, np.uint8, offset=start).reshape(shape)


# ---- CIFAR -----------------------------------------------------------------------------------------------------------
class _CifarLayout(NamedTuple):
    train: tuple[str, ...]
    test: str
    names: str  # the file with the class names
    key: bytes  # python: the labels' key, "fine_labels"; the names' key is "fine_label_names"
    num_label_bytes: int  # binary: bytes before the pixels, the last of which is the label; python: 0


_CIFAR_PIXELS = 3 * 32 * 32
_BATCHES = tuple(f"data_batch_{i}" for i in range(1, 6))
_CIFAR_LAYOUTS = (
    _CifarLayout(_BATCHES, "test_batch", "batches.meta", b"label", 0),
    _CifarLayout(("train",), "test", "meta", b"fine_label", 0),
    _CifarLayout(tuple(f"{batch}.bin" for batch in _BATCHES), "test_batch.bin", "batches.meta.txt", b"", 1),
    _CifarLayout(("train.bin",), "test.bin", "fine_label_names.txt", b"", 2),
)


def _read_cifar_binary(path: Path, layout: _CifarLayout) -> tuple[np.ndarray, np.ndarray]:
    with report_read_errors(path):
        data = np.fromfile(path, np.uint8)
    size = layout.num_label_bytes + _CIFAR_PIXELS
    if len(data) == 0 or len(data) % size:
        raise InputError(
            f"{path} holds {len(data)} bytes, not a multiple of {size}. It is cut short; download it again."
        )
    records = data.reshape(-1, size)
    labels = records[:, layout.num_label_bytes - 1].astype(np.int32)
    return _to_cifar_images(records[:, layout.num_label_bytes :]), labels


def _read_cifar_python(path: Path, layout: _CifarLayout) -> tuple[np.ndarray, np.ndarray]:
    batch = _unpickle(path)
    with report_read_errors(path):
        pixels, labels = np.asarray(batch[b"data"]), np.asarray(batch[layout.key + b"s"])
    if pixels.dtype != np.uint8 or pixels.shape != (len(labels), _CIFAR_PIXELS):
        raise InputError(
            f"{path}: data is {pixels.dtype} {pixels.shape} for {len(labels)} labels, not [n, {_CIFAR_PIXELS}]."
        )
    return _to_cifar_images(pixels), labels


def _to_cifar_images(pixels: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(pixels.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1))


def _read_cifar_names(path: Path, layout: _CifarLayout) -> list[str] | None:
    """The class names; None for binary batches without the file of names."""
    if not layout.num_label_bytes:
        names = _unpickle(path)
        with report_read_errors(path):
            return [name.decode() for name in names[layout.key + b"_names"]]
    if not path.exists():
        return None
    with report_read_errors(path):
        return read_regular(path).decode().split()


def _unpickle(path: Path) -> dict:
    return cast(dict, read_pickle(path, dict, "a CIFAR python batch", encoding="bytes"))


# ---- pickles ---------------------------------------------------------------------------------------------------------
class _ArrayUnpickler(pickle.Unpickler):
    """An unpickler restricted to arrays and containers, since pickles can call any function."""

    _ALLOWED = {
        ("multiarray", "_reconstruct"): np._core.multiarray._reconstruct,
        ("numeric", "_frombuffer"): np._core.numeric._frombuffer,  # pyrefly: ignore[missing-attribute], not in NumPy's stubs
        ("numpy", "ndarray"): np.ndarray,
        ("numpy", "dtype"): np.dtype,
        ("_codecs", "encode"): lambda text, codec: text.encode("latin1"),  # how Python 3 writes bytes for Python 2
    }

    def find_class(self, module: str, name: str) -> object:
        short = module.removeprefix("numpy.core.").removeprefix("numpy._core.")
        if (short, name) not in self._ALLOWED:
            raise pickle.UnpicklingError(f"it wants to use {module}.{name}, which no batch of images needs")
        return self._ALLOWED[short, name]


def read_pickle(path: Path, kind: type | tuple[type, ...], subject: str, encoding: str = "ASCII") -> object:
    """Read a pickle of arrays, texts, numbers and containers.

    Args:
        path: The file.
        kind: The class of its content.
        subject: A description of the file for messages: "a CIFAR python batch".
        encoding: The encoding of strings written by Python 2; "bytes" does not decode them.

    Raises:
        InputError: The file does not exist, is damaged, has other content, or calls other functions.
    """
    with report_read_errors(path):
        try:
            content = _ArrayUnpickler(io.BytesIO(read_regular(path)), encoding=encoding).load()
        except (pickle.UnpicklingError, TypeError, AttributeError) as error:
            raise InputError(f"cannot read {path} as {subject}: {error}. Download it again.") from error
    if not isinstance(content, kind):
        names = " or ".join(member.__name__ for member in (kind if isinstance(kind, tuple) else (kind,)))
        raise InputError(f"cannot read {path} as {subject}: it holds a {type(content).__name__}, not a {names}.")
    return content

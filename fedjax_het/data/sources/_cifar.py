"""CIFAR-10 and CIFAR-100 as their authors publish them: python batches, or binary batches."""

import io
import pickle
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedjax_het.data.dataset import Dataset, assemble
from fedjax_het.data.sources._io_errors import reporting_read_errors
from fedjax_het.errors import InputError

_NUM_PIXELS = 3 * 32 * 32


class _Layout(NamedTuple):
    train: tuple[str, ...]
    test: str
    names: str  # the file with the class names
    key: bytes  # python: the labels' key, "fine_labels"; the names' key is "fine_label_names"
    num_label_bytes: int  # binary: bytes before the pixels, the last of which is the label


_TEN, _HUNDRED = tuple(f"data_batch_{i}" for i in range(1, 6)), ("train",)
PYTHON = (
    _Layout(_TEN, "test_batch", "batches.meta", b"label", 0),
    _Layout(_HUNDRED, "test", "meta", b"fine_label", 0),
)
BINARY = (
    _Layout(tuple(f"{each}.bin" for each in _TEN), "test_batch.bin", "batches.meta.txt", b"", 1),
    _Layout(("train.bin",), "test.bin", "fine_label_names.txt", b"", 2),
)


def cifar_layout(path: Path) -> _Layout | None:
    """The layout whose first training file lies in `path`."""
    return next((layout for layout in PYTHON + BINARY if (path / layout.train[0]).is_file()), None)


def cifar_directory(path: Path, title: str | None = None) -> Dataset:
    """All training batches, and the test batch as the data set's own test split; fine labels of CIFAR-100.

    Class names come from the file beside the batches; binary batches may lack it, and then are "0", "1", ...
    Python batches are unpickled with nothing but arrays and containers admitted.
    Raises InputError for a batch that is missing, damaged, cut short, or wants to build anything else.
    """
    layout = cifar_layout(path)
    read = _read_binary if layout in BINARY else _read_python
    pixels, labels = zip(*[read(path / file, layout) for file in (*layout.train, layout.test)], strict=True)
    num = sum(len(each) for each in labels)
    images = np.concatenate(pixels).reshape(num, 3, 32, 32).transpose(0, 2, 3, 1)
    return assemble(
        title or path.name,
        np.ascontiguousarray(images),
        np.concatenate(labels),
        class_names=_class_names(path, layout),
        is_test=np.arange(num) >= num - len(labels[-1]),
    )


def _read_binary(path: Path, layout: _Layout) -> tuple[np.ndarray, np.ndarray]:
    with reporting_read_errors(path):
        data = np.fromfile(path, np.uint8)
    size = layout.num_label_bytes + _NUM_PIXELS
    if len(data) == 0 or len(data) % size:
        raise InputError(f"{path} holds {len(data)} bytes, not a multiple of {size}. It is cut short; fetch it again.")
    records = data.reshape(-1, size)
    return records[:, layout.num_label_bytes :], records[:, layout.num_label_bytes - 1].astype(np.int32)


def _read_python(path: Path, layout: _Layout) -> tuple[np.ndarray, np.ndarray]:
    batch = _unpickle(path)
    with reporting_read_errors(path):
        pixels, labels = np.asarray(batch[b"data"]), np.asarray(batch[layout.key + b"s"])
    if pixels.dtype != np.uint8 or pixels.shape != (len(labels), _NUM_PIXELS):
        raise InputError(
            f"{path}: data is {pixels.dtype} {pixels.shape} for {len(labels)} labels, not [n, {_NUM_PIXELS}]."
        )
    return pixels, labels


def _class_names(path: Path, layout: _Layout) -> list[str] | None:
    if layout in PYTHON:
        names = _unpickle(path / layout.names)
        with reporting_read_errors(path / layout.names):
            return [each.decode() for each in names[layout.key + b"_names"]]
    return (path / layout.names).read_text().split() if (path / layout.names).exists() else None


class _ArraysOnly(pickle.Unpickler):
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
    with reporting_read_errors(path):
        try:
            batch = _ArraysOnly(io.BytesIO(path.read_bytes()), encoding="bytes").load()
        except (pickle.UnpicklingError, TypeError, AttributeError) as error:
            raise InputError(f"cannot read {path} as a CIFAR python batch: {error}. Fetch it again.") from error
    if not isinstance(batch, dict):
        raise InputError(f"cannot read {path} as a CIFAR python batch: it holds a {type(batch).__name__}, not a dict.")
    return batch

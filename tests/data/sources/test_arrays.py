"""CIFAR's batches and MNIST's idx files."""

import gzip
import pickle
import struct
from pathlib import Path

import numpy as np
import pytest

from fedjax_het.data import load
from tests.data.sources.image_files import refuse

RNG = np.random.default_rng(0)
PIXELS = RNG.integers(0, 256, (12, 3072)).astype(np.uint8)
CIFAR_LABELS = np.arange(12) % 4
TEN = {
    name: slice(2 * i, 2 * i + 2) for i, name in enumerate([*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"])
}
HUNDRED = {"train": slice(0, 10), "test": slice(10, 12)}


def dump(path: Path, value, protocol=2):
    path.write_bytes(pickle.dumps(value, protocol))


def write_python_ten(folder, protocol=2):
    for name, part in TEN.items():
        dump(folder / name, {b"data": PIXELS[part], b"labels": CIFAR_LABELS[part].tolist()}, protocol)
    dump(folder / "batches.meta", {b"label_names": [b"a", b"b", b"c", b"d"]}, protocol)
    return folder


def write_python_hundred(folder):
    for name, part in HUNDRED.items():
        labels = CIFAR_LABELS[part].tolist()
        dump(folder / name, {b"data": PIXELS[part], b"fine_labels": labels, b"coarse_labels": [0] * len(labels)})
    dump(folder / "meta", {b"fine_label_names": [b"a", b"b", b"c", b"d"], b"coarse_label_names": [b"z"]})
    return folder


def write_binary(folder, parts, names, coarse=()):
    for name, part in parts.items():
        labels = CIFAR_LABELS[part, None].astype(np.uint8)
        np.concatenate([*(labels * 0 + 9 for _ in coarse), labels, PIXELS[part]], axis=1).tofile(folder / f"{name}.bin")
    (folder / names).write_text("a\nb\nc\nd\n\n")
    return folder


def write_binary_ten(folder):
    return write_binary(folder, TEN, "batches.meta.txt")


def write_binary_hundred(folder):
    return write_binary(folder, HUNDRED, "fine_label_names.txt", coarse=("coarse",))


@pytest.mark.parametrize("write", [write_python_ten, write_binary_ten, write_python_hundred, write_binary_hundred])
def test_every_cifar_layout_gives_the_same_data(tmp_path, write):
    dataset = load("arrays", path=write(tmp_path))
    np.testing.assert_array_equal(dataset.inputs, PIXELS.reshape(12, 3, 32, 32).transpose(0, 2, 3, 1))
    np.testing.assert_array_equal(dataset.labels, CIFAR_LABELS)
    assert dataset.is_test.tolist() == [False] * 10 + [True] * 2
    assert dataset.class_names == ("a", "b", "c", "d")


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_cifar_batches_of_every_pickle_protocol_are_read(tmp_path, protocol):
    assert len(load("arrays", path=write_python_ten(tmp_path, protocol)).labels) == 12


def test_binary_cifar_batches_without_names_have_numbered_classes(tmp_path):
    (write_binary_ten(tmp_path) / "batches.meta.txt").unlink()
    assert load("arrays", path=tmp_path).class_names == ("0", "1", "2", "3")


class Harmful:
    def __init__(self, target):
        self.target = target

    def __reduce__(self):
        return Path.touch, (self.target,)


def test_a_cifar_batch_that_calls_a_function_is_refused_and_nothing_is_called(tmp_path):
    write_python_ten(tmp_path)
    dump(tmp_path / "data_batch_3", {b"data": Harmful(tmp_path / "harm"), b"labels": [0]})
    refuse(r"data_batch_3 .*it wants to use", "arrays", tmp_path)
    assert not (tmp_path / "harm").exists()


@pytest.mark.parametrize(
    ("write", "name", "spoil", "message"),
    [
        (write_python_ten, "data_batch_4", lambda f: f.unlink(), "data_batch_4 does not exist"),
        (write_python_ten, "data_batch_2", lambda f: f.write_bytes(f.read_bytes()[:99]), "cannot read .*data_batch_2"),
        (write_python_ten, "data_batch_2", lambda f: f.write_bytes(b"hello"), "cannot read .*data_batch_2"),
        (write_python_ten, "data_batch_2", lambda f: dump(f, {b"labels": []}), "cannot read .*data_batch_2"),
        (write_python_ten, "data_batch_2", lambda f: dump(f, [1]), "cannot read .*data_batch_2"),
        (write_python_ten, "test_batch", lambda f: dump(f, {b"data": PIXELS, b"labels": [1]}), "for 1 labels"),
        (
            write_binary_ten,
            "test_batch.bin",
            lambda f: f.write_bytes(f.read_bytes()[:-1]),
            "6145 bytes.*multiple of 3073",
        ),
        (write_binary_hundred, "test.bin", lambda f: f.unlink(), r"test\.bin does not exist"),
    ],
)
def test_a_damaged_cifar_batch_is_named(tmp_path, write, name, spoil, message):
    spoil(write(tmp_path) / name)
    refuse(message, "arrays", tmp_path)


IDX_IMAGES = np.arange(5 * 3 * 4, dtype=np.uint8).reshape(5, 3, 4)
IDX_LABELS = np.array([3, 1, 4, 1, 5], np.uint8)


def idx_bytes(array, kind=8):
    return struct.pack(f">HBB{array.ndim}I", 0, kind, array.ndim, *array.shape) + array.tobytes()


def write_idx(folder, compress=False):
    contents = {
        "train-images-idx3-ubyte": idx_bytes(IDX_IMAGES),
        "train-labels-idx1-ubyte": idx_bytes(IDX_LABELS),
        "t10k-images-idx3-ubyte": idx_bytes(IDX_IMAGES[:2]),
        "t10k-labels-idx1-ubyte": idx_bytes(IDX_LABELS[:2]),
    }
    for name, data in contents.items():
        (folder / f"{name}.gz" if compress else folder / name).write_bytes(gzip.compress(data) if compress else data)
    return folder


@pytest.mark.parametrize("compress", [False, True])
def test_the_four_idx_files_are_read(tmp_path, compress):
    dataset = load("arrays", path=write_idx(tmp_path, compress), title="mnist")
    np.testing.assert_array_equal(dataset.inputs[..., 0], np.concatenate([IDX_IMAGES, IDX_IMAGES[:2]]))
    assert dataset.labels.tolist() == [3, 1, 4, 1, 5, 3, 1]
    assert dataset.is_test.tolist() == [False] * 5 + [True] * 2


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("train-images-idx3-ubyte", idx_bytes(IDX_IMAGES)[:-3], "announces 60 bytes.*holds 57"),
        ("train-images-idx3-ubyte", b"\0\0", "cannot read .*train-images"),
        ("t10k-labels-idx1-ubyte", idx_bytes(IDX_LABELS[:2], kind=13), "not an idx file of unsigned bytes"),
        ("t10k-labels-idx1-ubyte", idx_bytes(IDX_LABELS[:1]), "7 inputs but labels"),
        ("t10k-labels-idx1-ubyte", None, "t10k-labels-idx1-ubyte does not exist"),
        (
            "train-images-idx3-ubyte.gz",
            gzip.compress(bytes(99), mtime=0)[:-12],
            r"cannot read .*train-images-idx3-ubyte\.gz",
        ),
    ],
)
def test_a_damaged_idx_file_is_named(tmp_path, name, data, message):
    path = write_idx(tmp_path) / name
    path.unlink() if data is None else path.write_bytes(data)
    refuse(message, "arrays", tmp_path)

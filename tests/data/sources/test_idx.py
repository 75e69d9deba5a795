"""MNIST's idx files, as the tests write them."""

import gzip
import struct

import numpy as np
import pytest

from fedjax_het.data import load
from fedjax_het.errors import InputError

IMAGES = np.arange(5 * 3 * 4, dtype=np.uint8).reshape(5, 3, 4)
LABELS = np.array([3, 1, 4, 1, 5], np.uint8)


def idx_bytes(array, kind=8):
    return struct.pack(f">HBB{array.ndim}I", 0, kind, array.ndim, *array.shape) + array.tobytes()


def write(folder, compress=False, **replaced):
    contents = {
        "train-images-idx3-ubyte": idx_bytes(IMAGES),
        "train-labels-idx1-ubyte": idx_bytes(LABELS),
        "t10k-images-idx3-ubyte": idx_bytes(IMAGES[:2]),
        "t10k-labels-idx1-ubyte": idx_bytes(LABELS[:2]),
    }
    for name, data in (contents | replaced).items():
        (folder / f"{name}.gz" if compress else folder / name).write_bytes(gzip.compress(data) if compress else data)
    return folder


@pytest.mark.parametrize("compress", [False, True])
def test_the_four_files(tmp_path, compress):
    dataset = load("arrays", path=write(tmp_path, compress), title="mnist")
    np.testing.assert_array_equal(dataset.inputs[..., 0], np.concatenate([IMAGES, IMAGES[:2]]))
    assert dataset.labels.tolist() == [3, 1, 4, 1, 5, 3, 1]
    assert dataset.is_test.tolist() == [False] * 5 + [True] * 2


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("train-images-idx3-ubyte", idx_bytes(IMAGES)[:-3], "announces 60 bytes.*holds 57"),
        ("train-images-idx3-ubyte", b"\0\0", "cannot read .*train-images"),
        ("t10k-labels-idx1-ubyte", idx_bytes(LABELS[:2], kind=13), "not an idx file of unsigned bytes"),
        ("t10k-labels-idx1-ubyte", idx_bytes(LABELS[:1]), "7 inputs but labels"),
    ],
)
def test_damage_is_named(tmp_path, name, data, message):
    with pytest.raises(InputError, match=message):
        load("arrays", path=write(tmp_path, **{name: data}))


def test_a_missing_file_is_named(tmp_path):
    (write(tmp_path) / "t10k-labels-idx1-ubyte").unlink()
    with pytest.raises(InputError, match="t10k-labels-idx1-ubyte does not exist"):
        load("arrays", path=tmp_path)


def test_a_gzip_cut_short_is_named(tmp_path):
    file = write(tmp_path, compress=True) / "train-images-idx3-ubyte.gz"
    file.write_bytes(file.read_bytes()[:-12])
    with pytest.raises(InputError, match=r"cannot read .*train-images-idx3-ubyte\.gz"):
        load("arrays", path=tmp_path)

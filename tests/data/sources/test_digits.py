"""scikit-learn's digits, SVHN's Matlab files, and FedBN's Digits-5."""

import pickle
from importlib.metadata import PathDistribution
from pathlib import Path

import numpy as np
import pytest
from scipy.io import savemat

from fedjax_het.data import by_domain, federate, load
from fedjax_het.data.sources import _digits
from fedjax_het.errors import InputError
from tests.data.sources.image_files import refuse, write

SHAPES = {"MNIST": (28, 28), "SVHN": (32, 32, 3), "USPS": (16, 16), "SynthDigits": (32, 32, 3), "MNIST_M": (28, 28, 3)}
RNG = np.random.default_rng(0)


def test_digits_use_the_whole_range_of_a_byte():
    digits = load("digits")
    assert digits.inputs.shape == (1797, 8, 8, 1)
    assert digits.inputs.dtype == np.uint8
    assert set(np.unique(digits.inputs)) == {round(value * 255 / 16) for value in range(17)}
    assert np.bincount(digits.labels).tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]
    assert not digits.is_test.any()


def test_a_scikit_learn_without_its_digits_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(_digits, "distribution", lambda name: PathDistribution(tmp_path / name))
    with pytest.raises(InputError, match=r"digits\.csv\.gz does not exist\. Install it again"):
        load("digits")


def test_digits_have_masks_of_their_strokes():
    plain, masked = load("digits"), load("digits", masks=True)
    assert masked.is_segmentation and masked.class_names == ("background", "stroke")
    np.testing.assert_array_equal(masked.labels, plain.inputs[..., 0] >= 128)
    np.testing.assert_array_equal(masked.inputs, plain.inputs)


@pytest.mark.parametrize("masks", [False, True])
def test_digits_are_made_into_domains_of_equal_size(masks):
    plain, made = load("digits", masks=masks), load("digits", masks=masks, domains=True)
    assert made.domain_names == ("plain", "inverted", "rotated", "noisy")
    assert np.bincount(made.domains).tolist() == [450, 449, 449, 449]
    before, after = ([d.inputs[made.domains == i] for i in range(4)] for d in (plain, made))
    np.testing.assert_array_equal(after[0], before[0])
    np.testing.assert_array_equal(after[1], 255 - before[1])
    np.testing.assert_array_equal(after[2], np.rot90(before[2], axes=(1, 2)))
    noise = (after[3].astype(int) - before[3])[(before[3] > 100) & (before[3] < 160)]
    assert 40 < noise.std() < 55 and abs(noise.mean()) < 3
    turned = made.domains == 2
    expected = np.rot90(plain.labels[turned], axes=(1, 2)) if masks else plain.labels[turned]
    np.testing.assert_array_equal(made.labels[turned], expected)
    np.testing.assert_array_equal(made.labels[~turned], plain.labels[~turned])
    np.testing.assert_array_equal(made.inputs, load("digits", domains=True).inputs)


def write_svhn(folder, name, labels):
    images = RNG.integers(0, 256, (32, 32, 3, len(labels))).astype(np.uint8)
    savemat(folder / f"{name}_32x32.mat", {"X": images, "y": np.array(labels, np.uint8)[:, None]})
    return images.transpose(3, 0, 1, 2)


def test_svhn_is_read_from_its_matlab_files(tmp_path):
    train, test = write_svhn(tmp_path, "train", [1, 10, 9]), write_svhn(tmp_path, "test", [10, 2])
    dataset = load("svhn", path=tmp_path)
    np.testing.assert_array_equal(dataset.inputs, np.concatenate([train, test]))
    assert dataset.labels.tolist() == [1, 0, 9, 0, 2] and dataset.is_test.tolist() == [False] * 3 + [True] * 2
    extra = write_svhn(tmp_path, "extra", [3])
    dataset = load("svhn", path=tmp_path, extra=True)
    np.testing.assert_array_equal(dataset.inputs[3:4], extra)
    assert dataset.is_test.tolist() == [False] * 4 + [True] * 2
    assert load("svhn", path=tmp_path, size=8).inputs.shape == (5, 8, 8, 3)


def test_damaged_files_of_svhn_are_refused(tmp_path):
    refuse("train_32x32.mat does not exist", "svhn", tmp_path)
    write_svhn(tmp_path, "train", [0]), write_svhn(tmp_path, "test", [1])
    refuse("train_32x32.mat holds X .*with labels 1 to 10", "svhn", tmp_path)
    savemat(tmp_path / "train_32x32.mat", {"X": np.zeros((2, 2))})
    refuse("cannot read .*train_32x32.mat", "svhn", tmp_path)
    (tmp_path / "train_32x32.mat").write_bytes(b"no matrix")
    refuse("cannot read .*train_32x32.mat", "svhn", tmp_path)


@pytest.fixture
def digits(tmp_path):
    for folder, shape in SHAPES.items():
        for name, num in (("train", 6), ("test", 2), ("partitions/train_part0", 3), ("partitions/train_part1", 3)):
            images = RNG.integers(0, 256, (num, *shape)).astype(np.uint8)
            write(tmp_path / folder / f"{name}.pkl", pickle.dumps((images, np.arange(num))))
    return tmp_path


def test_the_digits_of_five_domains_have_one_size(digits):
    dataset = load("digits5", path=digits)
    assert dataset.inputs.shape == (25, 28, 28, 3) and dataset.inputs.dtype == np.uint8
    assert dataset.domain_names == ("mnist", "mnist_m", "svhn", "synth", "usps")
    assert dataset.labels.tolist() == [0, 1, 2, 0, 1] * 5 and dataset.is_test.tolist() == [*[False] * 3, True, True] * 5
    federation = federate(dataset, by_domain(), 0, local_test=True)
    assert federation.client_names == dataset.domain_names
    assert federation.data.train.count.tolist() == [3] * 5 and federation.data.test.count.tolist() == [2] * 5


def test_parts_of_digits_are_chosen(digits):
    assert len(load("digits5", path=digits, parts=2).labels) == 40
    assert len(load("digits5", path=digits, parts=None).labels) == 40
    images, _ = pickle.loads((digits / "MNIST" / "test.pkl").read_bytes())
    dataset = load("digits5", path=digits)
    np.testing.assert_array_equal(dataset.inputs[3:5], np.repeat(images[..., None], 3, axis=-1))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (np.zeros(2), "holds a ndarray, not a tuple or list"),
        ((np.zeros(2),), "holds 1 arrays, not two"),
        ((np.zeros((2, 4, 4), np.uint8), np.array([1, 10])), "with a digit each"),
        ((np.zeros((2, 4, 4)), np.array([1, 1])), "images float64"),
        ((Path("x"), 1), "it wants to use pathlib"),
    ],
)
def test_damaged_digits_are_refused(digits, content, message):
    write(digits / "USPS" / "test.pkl", pickle.dumps(content))
    refuse(message, "digits5", digits)


def test_missing_digits_are_named(digits, tmp_path):
    write(digits / "USPS" / "test.pkl", b"x")
    refuse("cannot read .*USPS/test.pkl", "digits5", digits)
    (digits / "USPS" / "test.pkl").unlink()
    refuse("USPS/test.pkl does not exist", "digits5", digits)
    (tmp_path / "none").mkdir()
    refuse("holds none of the folders MNIST, SVHN.*FedBN", "digits5", tmp_path / "none")

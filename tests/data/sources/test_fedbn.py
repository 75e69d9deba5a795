"""Digits-5 and Office-Caltech-10 in FedBN's files."""

import pickle
from pathlib import Path

import numpy as np
import pytest

from fedjax_het.data import by_domain, federate, load
from fedjax_het.errors import InputError
from tests.data.sources.image_files import draw

SHAPES = {"MNIST": (28, 28), "SVHN": (32, 32, 3), "USPS": (16, 16), "SynthDigits": (32, 32, 3), "MNIST_M": (28, 28, 3)}
RNG = np.random.default_rng(0)


def dump(path: Path, value) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(pickle.dumps(value, pickle.HIGHEST_PROTOCOL))


@pytest.fixture
def digits(tmp_path):
    for folder, shape in SHAPES.items():
        for name, num in (("train", 6), ("test", 2), ("partitions/train_part0", 3), ("partitions/train_part1", 3)):
            images = RNG.integers(0, 256, (num, *shape)).astype(np.uint8)
            dump(tmp_path / folder / f"{name}.pkl", (images, np.arange(num, dtype=np.int64)))
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
    ("spoil", "message"),
    [
        (lambda f: f.unlink(), r"USPS/test.pkl does not exist"),
        (lambda f: f.write_bytes(b"x"), "cannot read .*USPS/test.pkl"),
        (lambda f: dump(f, np.zeros(2)), "holds a ndarray, not a tuple or list"),
        (lambda f: dump(f, (np.zeros(2),)), "holds 1 arrays, not two"),
        (lambda f: dump(f, (np.zeros((2, 4, 4), np.uint8), np.array([1, 10]))), "with a digit each"),
        (lambda f: dump(f, (np.zeros((2, 4, 4)), np.array([1, 1]))), "images float64"),
        (lambda f: dump(f, (Path("x"), 1)), "it wants to use pathlib"),
    ],
)
def test_damaged_digits_are_refused(digits, spoil, message):
    spoil(digits / "USPS" / "test.pkl")
    with pytest.raises(InputError, match=message):
        load("digits5", path=digits)


def test_a_folder_without_digits_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"holds none of the folders MNIST, SVHN.*FedBN"):
        load("digits5", path=tmp_path)


@pytest.fixture
def office(tmp_path):
    for site in ("amazon", "caltech", "dslr", "webcam"):
        for i, name in enumerate(("back_pack", "mug")):
            draw(tmp_path / "office_caltech_10" / site / name / f"frame_{i}.jpg", mode="RGB" if i else "L")
        for split, i, name in (("train", 0, "back_pack"), ("test", 1, "mug")):
            lists = np.array([f"office_caltech_10/{site}/{name}/frame_{i}.jpg"], object), np.array([name], object)
            dump(tmp_path / "office_caltech_10" / f"{site}_{split}.pkl", lists)
    return tmp_path


def test_office_has_the_split_of_fedbn(office, tmp_path):
    dataset = load("office_caltech10", path=office, size=8, cache=tmp_path / "cache")
    assert dataset.inputs.shape == (8, 8, 8, 3) and dataset.num_classes == 10
    assert dataset.domain_names == ("amazon", "caltech", "dslr", "webcam")
    assert [dataset.class_names[i] for i in dataset.labels] == ["back_pack", "mug"] * 4
    assert dataset.is_test.tolist() == [False, True] * 4
    assert dataset.notes == ("8 of the 2,533 examples that were published",)


def test_office_without_lists_has_no_split(office, tmp_path):
    for file in (office / "office_caltech_10").glob("*.pkl"):
        file.unlink()
    dataset = load("office_caltech10", path=office / "office_caltech_10", size=8, cache=tmp_path / "cache")
    assert not dataset.is_test.any() and "no split of FedBN's" in dataset.notes[0]


@pytest.mark.parametrize(
    ("lists", "message"),
    [
        ((["office_caltech_10/dslr/mug/none.jpg"], ["mug"]), "none.jpg is not in .*dslr"),
        ((["office_caltech_10/dslr/mug/frame_1.jpg"], ["bike"]), "listed as bike, and lies in the folder mug"),
        ((["a"], ["mug", "mug"]), "lists 1 images and 2 classes"),
    ],
)
def test_lists_that_do_not_fit_are_refused(office, tmp_path, lists, message):
    dump(office / "office_caltech_10" / "dslr_test.pkl", lists)
    with pytest.raises(InputError, match=message):
        load("office_caltech10", path=office, cache=tmp_path / "cache")


def test_folders_of_another_kind_are_refused(office, tmp_path):
    draw(office / "office_caltech_10" / "dslr" / "cup" / "a.jpg")
    with pytest.raises(InputError, match="cup is no class of Office-Caltech-10"):
        load("office_caltech10", path=office, cache=tmp_path / "cache")
    with pytest.raises(InputError, match=r"holds no amazon.*FedBN"):
        load("office_caltech10", path=office / "office_caltech_10" / "dslr")

"""PACS, VLCS, Office-Home and Digits-DG in their usual layouts."""

import shutil

import numpy as np
import pytest

from fedjax_het.data import by_domain, federate, load
from fedjax_het.data.sources._image_listing import read_split_list
from fedjax_het.errors import InputError
from tests.data.sources.image_files import draw
from tests.shared import shared_path

PACS = ("dog", "elephant", "giraffe", "guitar", "horse", "house", "person")
DOMAINS = ("art_painting", "cartoon", "photo", "sketch")


@pytest.fixture
def pacs(tmp_path):
    """Two images of two classes a domain, below images/ as in Dassl."""
    for domain in DOMAINS:
        for name in ("dog", "person"):
            for i in (1, 2):
                draw(tmp_path / "images" / domain / name / f"{i}.png", value=i)
    return tmp_path


def write_lists(folder):
    folder.mkdir()
    for domain in DOMAINS:
        rows = {"train": ["dog/1.png 1", "person/1.png 7"], "crossval": ["dog/2.png 1", "person/2.png 7"]}
        rows["test"] = rows["train"] + rows["crossval"]
        for word, lines in rows.items():
            lines = [f"{domain}/{line}" for line in lines]
            (folder / f"{domain}_{word}_kfold.txt").write_text("\n".join(lines) + "\n")
    return folder


@pytest.mark.parametrize("inside", ["", "raw_images", "PACS", "pacs/images"])
def test_pacs_is_found_in_every_usual_folder(pacs, inside):
    (pacs / inside).parent.mkdir(parents=True, exist_ok=True)
    if inside:
        (pacs / "images").rename(pacs / inside)
    dataset = load("pacs", path=pacs if inside else pacs / "images")
    assert (dataset.class_names, dataset.domain_names) == (PACS, DOMAINS)
    assert dataset.labels.tolist() == [0, 0, 6, 6] * 4
    assert dataset.splits["train"].all()
    assert "16 of the 9,991 examples that were published" in dataset.notes


@pytest.mark.parametrize("place", ["splits", "images/Train val splits and h5py files pre-read"])
def test_pacs_lists_become_the_published_split(pacs, place):
    write_lists(pacs / place)
    draw(pacs / "images" / "photo" / "dog" / "more.png")
    dataset = load("pacs", path=pacs)
    assert dataset.is_valid.tolist() == [False, False, True, True] * 4
    assert dataset.labels.tolist() == [0, 6] * 8
    assert dataset.inputs[:, 0, 0, 0].tolist() == [1, 1, 2, 2] * 4
    assert "1 images are in no list: left out" in dataset.notes
    federation = federate(dataset, by_domain(), 3, unseen_domains="sketch", test_fraction=0, client_test_fraction=0)
    assert federation.unseen["sketch"].count == 4
    assert federation.data.train.count.tolist() == federation.data.valid.count.tolist() == [2, 2, 2]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("photo/dog/9.png 1", r"photo_train_kfold\.txt, line 2: .*9\.png does not exist"),
        ("photo/dog/1.png 2", r"line 2: label 2 is not that of photo/dog/1\.png's folder"),
        ("photo/dog/1.png", r"line 2: 'photo/dog/1\.png' is not '<file> <label>'"),
        ("sketch/dog/1.png 1", r"line 2: sketch/dog/1\.png is of another domain than its list"),
        ("photo/dog/2.png 1", r"photo/dog/2\.png is listed twice, for photo \(train\) and for photo \(valid\)"),
    ],
)
def test_lists_that_do_not_fit_are_named(pacs, line, message):
    listed = write_lists(pacs / "splits") / "photo_train_kfold.txt"
    listed.write_text(f"photo/dog/1.png 1\n{line}\n")
    with pytest.raises(InputError, match=message):
        load("pacs", path=pacs)


def test_a_missing_list_is_named(pacs):
    (write_lists(pacs / "splits") / "photo_crossval_kfold.txt").unlink()
    with pytest.raises(InputError, match=r"photo_crossval_kfold\.txt does not exist"):
        load("pacs", path=pacs)


def test_unknown_classes_and_folders_of_pacs_are_named(pacs, tmp_path):
    shutil.copytree(pacs / "images" / "photo" / "dog", pacs / "images" / "photo" / "dogs")
    with pytest.raises(InputError, match=r"photo/dogs is no class of PACS. Did you mean 'dog'"):
        load("pacs", path=pacs)
    with pytest.raises(InputError, match=r"does not exist.*PACS is published at https://dali-dl"):
        load("pacs", path=tmp_path / "nowhere")
    (tmp_path / "empty" / "pictures").mkdir(parents=True)
    with pytest.raises(InputError, match=r"holds no domain of PACS. Looked for folders art_painting"):
        load("pacs", path=tmp_path / "empty")


def test_vlcs_with_splits_and_numbered_classes_is_read(tmp_path):
    for domain in ("CALTECH", "LABELME", "PASCAL", "SUN"):
        for split, label in (("train", 0), ("crossval", 4), ("test", 4), ("full", 4)):
            draw(tmp_path / "VLCS" / domain / split / str(label) / "a.jpg")
    dataset = load("vlcs", path=tmp_path)
    assert dataset.domain_names == ("caltech", "labelme", "pascal", "sun")
    assert dataset.class_names == ("bird", "car", "chair", "dog", "person")
    assert dataset.labels.tolist() == [4, 4, 0] * 4  # crossval, test, train
    assert dataset.is_valid.tolist() == [True, False, False] * 4
    assert dataset.is_test.tolist() == [False, True, False] * 4


def test_vlcs_in_class_folders_is_read(tmp_path):
    for domain in ("Caltech101", "LabelMe", "SUN09", "VOC2007"):
        draw(tmp_path / domain / "chair" / "a.jpg"), draw(tmp_path / domain / "bird" / "a.jpg")
    dataset = load("vlcs", path=tmp_path)
    assert dataset.domain_names == ("caltech", "labelme", "pascal", "sun")
    assert dataset.labels.tolist() == [0, 2] * 4
    assert "read Caltech101 as caltech, LabelMe as labelme, SUN09 as sun, VOC2007 as pascal" in dataset.notes


def test_office_home_is_read_in_every_spelling(tmp_path):
    names = {"Art": ("Alarm_Clock", "TV"), "Clipart": ("alarm clock", "tv"), "RealWorld": ("Alarm-Clock", "TV")}
    for domain, classes in names.items():
        for name in classes:
            draw(tmp_path / domain / name / "1.jpg")
    (tmp_path / "lists").mkdir()
    dataset = load("office_home", path=tmp_path)
    assert (dataset.class_names, dataset.domain_names) == (("Alarm_Clock", "TV"), ("art", "clipart", "real_world"))
    assert dataset.labels.tolist() == [0, 1] * 3
    assert "read Art as art, Clipart as clipart, RealWorld as real_world" in dataset.notes
    assert "no folder for product" in dataset.notes and "skipped: lists" in dataset.notes


def test_office_home_with_the_splits_of_dassl_is_read(tmp_path):
    for domain in ("art", "clipart", "product", "real_world"):
        for split in ("train", "val"):
            draw(tmp_path / "office_home_dg" / domain / split / "Bed" / "1.jpg")
    assert load("office_home", path=tmp_path).is_valid.tolist() == [False, True] * 4


def test_office_home_refuses_a_lone_class_and_a_domain_in_two_spellings(tmp_path):
    for domain in ("art", "product"):
        draw(tmp_path / domain / "Bed" / "1.jpg")
    draw(tmp_path / "product" / "Beds" / "1.jpg")
    with pytest.raises(InputError, match=r"class 'Beds' exists in domain 'product' only.*Did you mean 'Bed'"):
        load("office_home", path=tmp_path)
    draw(tmp_path / "Product" / "Bed" / "1.jpg")
    with pytest.raises(InputError, match=r"Product and .*product are both the domain product"):
        load("office_home", path=tmp_path)


def test_digits_dg_is_read_with_its_validation_split(tmp_path):
    for domain in ("mnist", "mnist_m", "svhn", "syn"):
        for split, digit in (("train", 9), ("val", 3)):
            draw(tmp_path / domain / split / str(digit) / "1.jpg", size=(32, 32))
    dataset = load("digits_dg", path=tmp_path)
    assert dataset.labels.tolist() == [9, 3] * 4 and dataset.num_classes == 10
    assert dataset.is_valid.tolist() == [False, True] * 4


@pytest.mark.extended
def test_pacs_is_read_as_published():
    path = shared_path("data/pacs/sample_original/PACS")
    dataset = load("pacs", path=path.parent)
    folders = load("folders", path=path)
    np.testing.assert_array_equal(dataset.inputs, folders.inputs)
    np.testing.assert_array_equal(dataset.labels, folders.labels)
    assert (dataset.domain_names, dataset.class_names) == (DOMAINS, PACS)
    assert load("pacs", path=path, size=64).inputs.shape == (168, 64, 64, 3)


def test_a_byte_order_mark_is_no_part_of_a_list_of_files(tmp_path):
    draw(tmp_path / "photo" / "dog" / "1.png")
    (tmp_path / "photo.txt").write_text("photo/dog/1.png 1\n", encoding="utf-8-sig")
    rows = read_split_list(tmp_path / "photo.txt", tmp_path)
    assert [(row.path, row.label) for row in rows] == [("photo/dog/1.png", 1)]

"""PACS, VLCS, Office-Home, Digits-DG, Office-Caltech-10 and CINIC-10 in their usual layouts."""

import pickle

import numpy as np
import pytest

from fedjax_het.data import by_domain, federate, load
from tests.data.sources.image_files import draw, refuse, write
from tests.shared import shared_path

PACS = ("dog", "elephant", "giraffe", "guitar", "horse", "house", "person")
DOMAINS = ("art_painting", "cartoon", "photo", "sketch")
SITES = ("amazon", "caltech", "dslr", "webcam")


@pytest.fixture
def pacs(tmp_path):
    """Two images of two classes a domain, below images/ as in Dassl."""
    for domain in DOMAINS:
        for name in ("dog", "person"):
            for i in (1, 2):
                draw(tmp_path / "images" / domain / name / f"{i}.png", value=i)
    return tmp_path


def write_lists(folder):
    for domain in DOMAINS:
        for word, i in (("train", 1), ("crossval", 2)):
            lines = f"{domain}/dog/{i}.png 1\n{domain}/person/{i}.png 7\n"
            write(folder / f"{domain}_{word}_kfold.txt", "\ufeff" + lines)  # a byte order mark is no part of a name
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
        ("photo/dog/1.png 2", r"line 2: .*photo/dog/1\.png is listed as elephant of photo, and is in .* dog of photo"),
        ("photo/dog/1.png", r"line 2: 'photo/dog/1\.png' is not '<file> <label>'"),
        ("sketch/dog/1.png 1", r"line 2: .*sketch/dog/1\.png is listed as dog of photo, and is in .* dog of sketch"),
        ("photo/dog/2.png 1", r"photo/dog/2\.png is listed twice, for photo \(train\) and for photo \(valid\)"),
        (None, r"photo_train_kfold\.txt does not exist"),
    ],
)
def test_lists_of_pacs_that_do_not_fit_are_named(pacs, line, message):
    listed = write_lists(pacs / "splits") / "photo_train_kfold.txt"
    listed.unlink() if line is None else listed.write_text(f"photo/dog/1.png 1\n{line}\n")
    refuse(message, "pacs", pacs)


def test_unknown_classes_and_folders_of_pacs_are_named(pacs, tmp_path):
    draw(pacs / "images" / "photo" / "dogs" / "1.png")
    refuse(r"photo/dogs is not a class of PACS. Did you mean 'dog'", "pacs", pacs)
    refuse("does not exist.*PACS is published at https://dali-dl", "pacs", tmp_path / "nowhere")
    (tmp_path / "empty" / "pictures").mkdir(parents=True)
    refuse("holds no domain of PACS. Looked for folders art_painting", "pacs", tmp_path / "empty")


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


def test_office_home_refuses_a_lone_class_and_a_domain_in_two_spellings(tmp_path):
    draw(tmp_path / "art/Bed/1.jpg"), draw(tmp_path / "product/Bed/1.jpg"), draw(tmp_path / "product/Beds/1.jpg")
    refuse("class 'Beds' exists in domain 'product' only.*Did you mean 'Bed'", "office_home", tmp_path)
    draw(tmp_path / "Product" / "Bed" / "1.jpg")
    refuse("Product and .*product are both the domain product", "office_home", tmp_path)


@pytest.mark.parametrize(
    ("source", "inside", "domains", "labels"),
    [
        ("office_home", "office_home_dg", ("art", "clipart", "product", "real_world"), {"train": "Bed", "val": "Bed"}),
        ("digits_dg", "", ("mnist", "mnist_m", "svhn", "syn"), {"train": "9", "val": "3"}),
    ],
)
def test_the_splits_of_dassl_are_read(tmp_path, source, inside, domains, labels):
    for domain in domains:
        for split, label in labels.items():
            draw(tmp_path / inside / domain / split / label / "1.jpg")
    dataset = load(source, path=tmp_path)
    assert dataset.domain_names == domains and dataset.is_valid.tolist() == [False, True] * 4
    assert [dataset.class_names[label] for label in dataset.labels] == [*labels.values()] * 4


@pytest.mark.extended
def test_pacs_is_read_as_published():
    path = shared_path("data/pacs/sample_original/PACS")
    dataset = load("pacs", path=path.parent)
    folders = load("folders", path=path)
    np.testing.assert_array_equal(dataset.inputs, folders.inputs)
    np.testing.assert_array_equal(dataset.labels, folders.labels)
    assert (dataset.domain_names, dataset.class_names) == (DOMAINS, folders.class_names) == (DOMAINS, PACS)
    assert folders.class_counts.tolist() == [[6] * 7] * 4 and folders.inputs.shape == (168, 227, 227, 3)
    assert load("pacs", path=path, size=64).inputs.shape == (168, 64, 64, 3)


@pytest.fixture
def office(tmp_path):
    for site in SITES:
        for i, (split, name) in enumerate((("train", "back_pack"), ("test", "mug"))):
            file = f"office_caltech_10/{site}/{name}/frame_{i}.jpg"
            draw(tmp_path / file, mode="RGB" if i else "L")
            lists = np.array([file], object), np.array([name], object)
            write(tmp_path / "office_caltech_10" / f"{site}_{split}.pkl", pickle.dumps(lists))
    return tmp_path


def test_office_has_the_split_of_fedbn(office):
    dataset = load("office_caltech10", path=office, size=8)
    assert dataset.inputs.shape == (8, 8, 8, 3) and dataset.num_classes == 10
    assert dataset.domain_names == SITES
    assert [dataset.class_names[i] for i in dataset.labels] == ["back_pack", "mug"] * 4
    assert dataset.is_test.tolist() == [False, True] * 4
    assert dataset.notes == ("split by the published lists", "8 of the 2,533 examples that were published")
    for file in (office / "office_caltech_10").glob("*.pkl"):
        file.unlink()
    dataset = load("office_caltech10", path=office / "office_caltech_10", size=8)
    assert not dataset.is_test.any() and dataset.notes[0] == "no published split: no <site>_train.pkl beside the sites"


@pytest.mark.parametrize(
    ("lists", "message"),
    [
        ((["office_caltech_10/dslr/mug/none.jpg"], ["mug"]), "dslr_test.pkl: .*none.jpg does not exist"),
        ((["office_caltech_10/dslr/mug/frame_1.jpg"], ["bike"]), "listed as bike of dslr, and is in the folder mug"),
        ((["a"], ["mug", "mug"]), "lists 1 images and 2 classes"),
    ],
)
def test_lists_of_office_that_do_not_fit_are_refused(office, lists, message):
    write(office / "office_caltech_10" / "dslr_test.pkl", pickle.dumps(lists))
    refuse(message, "office_caltech10", office)


def test_cinic_has_three_splits_and_two_origins(tmp_path):
    for split in ("train", "valid", "test"):
        draw(tmp_path / split / "airplane" / f"cifar10-{split}-1.png"), draw(tmp_path / split / "truck" / "n02_7.png")
    dataset = load("cinic10", path=tmp_path)
    assert dataset.inputs.shape == (6, 4, 6, 3) and dataset.num_classes == 10
    assert dataset.domain_names == ("cifar10", "imagenet")
    assert dataset.labels.tolist() == [0, 9] * 3 and dataset.domains.tolist() == [0, 1] * 3
    assert [int(is_member.sum()) for is_member in dataset.splits.values()] == [2, 2, 2]
    assert dataset.notes == ("6 of the 270,000 examples that were published",)
    draw(tmp_path / "test" / "lorry" / "a.png")
    refuse("lorry is not a class of CINIC-10", "cinic10", tmp_path)
    refuse("test holds no folder test next to train, valid and test", "cinic10", tmp_path / "test")

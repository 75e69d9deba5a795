"""Mini-DomainNet, Tiny-ImageNet, Retina, COVID-FL and Camelyon17: images in lists and tables."""

import csv
import os
from pathlib import Path

import numpy as np
import pytest

from fedjax_het.data import by_domain, federate, iid, load
from tests.data.sources.image_files import draw, refuse, write

# ---- DomainNet -------------------------------------------------------------------------------------------------------
CLASSES = ("ant", "bee hive", "cat")
DOMAINS = ("clipart", "real", "sketch")


@pytest.fixture
def domainnet(tmp_path):
    for domain in DOMAINS:
        lines = {"train": "", "test": ""}
        for label, name in enumerate(CLASSES):
            for i, split in enumerate(("train", "train", "test")):
                file = f"{domain}/{name}/{domain}_{label}_{i}.jpg"
                draw(tmp_path / "domainnet" / file, size=(4 + i, 6), value=label)
                lines[split] += f"{file} {label}\n"
        for split, text in lines.items() if domain != "sketch" else ():
            write(tmp_path / "domainnet" / "splits_mini" / f"{domain}_{split}.txt", text)
    return tmp_path


@pytest.mark.parametrize("inside", ["", "domainnet"])
def test_domains_with_lists_are_read(domainnet, inside):
    dataset = load("mini_domainnet", path=domainnet / inside, size=8)
    assert (dataset.name, dataset.domain_names) == ("mini_domainnet", ("clipart", "real"))
    assert dataset.class_names == CLASSES
    assert dataset.inputs.shape == (18, 8, 8, 3)
    assert dataset.labels.tolist() == [0, 0, 1, 1, 2, 2, 0, 1, 2] * 2
    assert dataset.is_test.tolist() == ([False] * 6 + [True] * 3) * 2
    assert federate(dataset, iid(), 2).test.index.tolist() == [6, 7, 8, 15, 16, 17]


def test_the_whole_of_domainnet_is_read_and_an_unused_label_is_noted(domainnet):
    (domainnet / "domainnet" / "splits_mini").rename(domainnet / "domainnet" / "splits")
    for domain in ("clipart", "real"):
        for file in (domainnet / "domainnet" / "splits").glob(f"{domain}_*"):
            file.write_text("".join(line for line in file.read_text().splitlines(True) if "bee" not in line))
    dataset = load("mini_domainnet", path=domainnet, lists="splits", size=8)
    assert (dataset.name, dataset.class_names) == ("domainnet", ("ant", "class_1", "cat"))
    assert "no list has labels [1]" in dataset.notes
    refuse(r"holds no splits_mini.*ai\.bu\.edu", "mini_domainnet", domainnet)


@pytest.mark.parametrize(
    ("train", "message"),
    [
        ("real/ant/real_0_0.jpg 1", r"label 1 for ant, but elsewhere 1 is bee hive and ant is 0"),
        ("real/ant/real_0_9.jpg 0", r"real_train\.txt, line 1: .*real_0_9\.jpg does not exist"),
        ("\nreal/ant/real_0_0.jpg zero", r"real_train\.txt, line 2: .* is not '<file> <label>'"),
        ("sketch/cat/sketch_2_0.jpg 3", r"line 1: sketch/cat/sketch_2_0\.jpg is of another domain"),
        ("real/cat/real_2_0.jpg 3", r"label 3 for cat, but elsewhere 3 is cat and cat is 2"),
    ],
)
def test_lists_that_contradict_are_named(domainnet, train, message):
    write(domainnet / "domainnet" / "splits_mini" / "real_train.txt", train)
    refuse(message, "mini_domainnet", domainnet)


def test_a_class_of_one_domain_and_a_missing_list_are_refused(domainnet):
    refuse("Give `size`", "mini_domainnet", domainnet)
    for split, line in (("train", "real/ant/real_0_0.jpg 0"), ("test", "real/cat/real_2_2.jpg 2")):
        write(domainnet / "domainnet" / "splits_mini" / f"real_{split}.txt", line)
    refuse("class 'bee hive' exists in domain 'clipart' only", "mini_domainnet", domainnet)
    (domainnet / "domainnet" / "splits_mini" / "real_test.txt").unlink()
    refuse(r"real_test\.txt does not exist", "mini_domainnet", domainnet)


@pytest.mark.parametrize(
    ("source", "inside"), [("mini_domainnet", "domainnet/splits_mini"), ("retina", "Retina/5_clients/split_1")]
)
def test_unreadable_lists_are_an_error_and_not_ignored(domainnet, retina, tmp_path, monkeypatch, source, inside):
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != tmp_path / inside)
    refuse(f"cannot read {tmp_path / inside}: Permission denied", source, tmp_path)


# ---- Tiny-ImageNet ---------------------------------------------------------------------------------------------------
@pytest.fixture
def tiny(tmp_path):
    root = tmp_path / "tiny-imagenet-200"
    for wnid in ("n02", "n01"):
        draw(root / "train" / wnid / "images" / f"{wnid}_0.JPEG", size=(4, 4), mode="L" if wnid == "n01" else "RGB")
        (root / "train" / wnid / f"{wnid}_boxes.txt").write_text(f"{wnid}_0.JPEG\t0\t0\t3\t3\n")
    draw(root / "val" / "images" / "val_0.JPEG", size=(4, 4))
    draw(root / "test" / "images" / "test_0.JPEG", size=(4, 4))
    (root / "val" / "val_annotations.txt").write_text("val_0.JPEG\tn01\t0\t0\t3\t3\n")
    (root / "wnids.txt").write_text("n02\nn01\n")
    return root


def test_tiny_imagenet_is_tested_on_its_validation_images(tiny, tmp_path):
    for path in (tiny, tmp_path):
        dataset = load("tiny_imagenet", path=path)
        assert dataset.class_names == ("n02", "n01") and dataset.inputs.shape == (3, 4, 4, 3)
        assert dataset.labels.tolist() == [1, 0, 1] and dataset.is_test.tolist() == [False, False, True]


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        ("wnids.txt", "n01\n", "n02 is of no class in wnids.txt"),
        ("val/val_annotations.txt", "val_0.JPEG\tn07\n", "line 1: 'n07' is not a class in wnids.txt"),
        ("val/val_annotations.txt", "\nval_9.JPEG\tn01\n", r"line 2: .*val_9.JPEG does not exist"),
        ("val/val_annotations.txt", None, "val_annotations.txt does not exist"),
        ("wnids.txt", None, "holds no wnids.txt"),
    ],
)
def test_tiny_imagenet_of_another_form_is_refused(tiny, file, text, message):
    (tiny / file).unlink() if text is None else (tiny / file).write_text(text)
    refuse(message, "tiny_imagenet", tiny)


# ---- Retina and COVID-FL ---------------------------------------------------------------------------------------------
CLIENTS = {"client_1": ["a.npy", "b.npy"], "client_2": ["c.npy"], "client_10": ["d.npy"]}


@pytest.fixture
def retina(tmp_path):
    """Three clients with four images, and a common test list of two; values tell the files apart."""
    root = tmp_path / "Retina"
    for client, files in CLIENTS.items():
        write(root / "5_clients" / "split_1" / f"{client}.csv", "\n".join(files) + "\n")
    for folder, names in (("train", "abcd"), ("test", "ef")):
        (root / folder).mkdir()
        for i, name in enumerate(names):
            np.save(root / folder / f"{name}.npy", np.full((6, 5, 3), 10.4 + i, np.float32))
    write(root / "test.csv", "e.npy,0\nf.npy,1\n")
    write(root / "labels.csv", "".join(f"{name}.npy,{i % 2}.0\n" for i, name in enumerate("abcdef")))
    return root


def test_clients_are_domains_and_the_test_list_is_common(retina):
    dataset = load("retina", path=retina.parent)
    assert dataset.domain_names == ("client_1", "client_2", "client_10", "test")
    assert dataset.domains.tolist() == [0, 0, 1, 2, 3, 3]
    assert dataset.labels.tolist() == [0, 1, 0, 1, 0, 1] and dataset.class_names == ("0", "1")
    assert dataset.inputs[:, 0, 0, 0].tolist() == [10, 11, 12, 13, 10, 11]
    assert dataset.is_test.tolist() == [False] * 4 + [True] * 2
    federation = federate(dataset, by_domain(), 3, client_test_fraction=0)
    assert federation.client_names == ("client_1", "client_2", "client_10")
    assert federation.test.index.tolist() == [4, 5]


@pytest.mark.parametrize(
    ("array", "value"),
    [
        (np.full((6, 5, 3), 7, np.uint8), 7),
        (np.full((6, 5), 7, np.uint8), 7),
        (np.full((6, 5, 1), 7, np.uint8), 7),
        (np.full((6, 5, 4), 7, np.uint8), 7),
        (np.full((6, 5, 3), 0.2, np.float64), 51),
        (np.full((6, 5, 3), 200.6, np.float32), 201),
        (np.full((6, 5, 3), 1, np.int16), 1),
    ],
)
def test_arrays_of_every_type_are_converted_to_bytes(retina, array, value):
    np.save(retina / "train" / "a.npy", array)
    assert (load("retina", path=retina).inputs[0] == value).all()


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.full((6, 5, 3), -1.0), "outside 0..255"),
        (np.full((6, 5, 3), np.nan), "outside 0..255"),
        (np.zeros(5), r"holds float64 \(5,\), not an image"),
        (np.zeros((6, 5), bool), "holds bool"),
        (np.zeros((7, 5, 3)), r"a\.npy is 5 x 7 and .*b\.npy is 5 x 6 pixels"),
    ],
)
def test_arrays_that_are_not_images_are_refused(retina, array, message):
    np.save(retina / "train" / "a.npy", array)
    refuse(message, "retina", retina)


def test_a_pickled_array_and_a_file_cut_short_are_refused(retina):
    np.save(retina / "train" / "a.npy", np.array([{}], object), allow_pickle=True)
    refuse(r"cannot read .*a\.npy.*Python objects", "retina", retina)
    (retina / "train" / "a.npy").write_bytes((retina / "train" / "b.npy").read_bytes()[:-9])
    refuse(r"cannot read .*a\.npy", "retina", retina)


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        ("5_clients/split_1/client_2.csv", "c.npy\nz.npy\n", r"client_2\.csv, line 2: .*z\.npy does not exist"),
        ("5_clients/split_1/client_2.csv", "a.npy\n", r"a\.npy is listed twice, for client_1 .* for client_2"),
        ("labels.csv", "a.npy,0\n", r"client_1\.csv, line 2: labels\.csv has no label for b\.npy"),
        ("labels.csv", "a.npy\n", r"labels\.csv, line 1: 'a\.npy' is not '<file>,<label>'"),
        ("labels.csv", "a.npy,0.5\n", r"labels\.csv, line 1: the label is '0\.5'"),
        ("test.csv", "a.npy\n", r"test\.csv, line 1: .*test/a\.npy does not exist"),
    ],
)
def test_lists_that_do_not_fit_are_named(retina, file, text, message):
    (retina / file).write_text(text)
    refuse(message, "retina", retina)


def test_a_repeated_line_counts_once_and_is_noted(retina):
    (retina / "5_clients" / "split_1" / "client_2.csv").write_text("c.npy\nc.npy\n")
    dataset = load("retina", path=retina)
    assert len(dataset.labels) == 6
    assert "client_2.csv repeats 1 lines, which count once" in dataset.notes


def test_the_error_for_a_missing_split_names_the_existing_ones(retina):
    refuse(
        r"split_3 holds no lists of clients. There are 5_clients/split_1 in",
        "retina",
        retina,
        split="5_clients/split_3",
    )


def test_covid_fl_with_files_of_two_kinds_is_read(tmp_path):
    root = tmp_path / "COVID-FL"
    draw(root / "train" / "a.png", size=(8, 5), mode="L", value=9), draw(root / "train" / "b.jpg", size=(5, 7))
    draw(root / "test" / "c.png")
    write(root / "12_clients/split_real/bimcv.csv", "a.png,2\n")
    write(root / "12_clients/split_real/rsna-0.csv", "b.jpg,0\n")
    write(root / "test.csv", "c.png\n"), write(root / "labels.csv", "a.png,2\nb.jpg,0\nc.png,1\n")
    dataset = load("covid_fl", path=root, size=4)
    assert dataset.inputs.shape == (3, 4, 4, 3) and (dataset.inputs[0] == 9).all()
    assert dataset.domain_names == ("bimcv", "rsna-0", "test")
    assert dataset.labels.tolist() == [2, 0, 1] and dataset.class_names == ("0", "1", "2")


# ---- Camelyon17 ------------------------------------------------------------------------------------------------------
HEADER = ["", "patient", "node", "x_coord", "y_coord", "tumor", "slide", "center", "split"]


def rows():
    """Ten training patches of either class and two test patches a hospital; tumor before normal, as in the original."""
    line = 0
    for tumor in (1, 0):
        for center in (0, 3):
            for i in range(11):
                patient = "004" if center == 0 else "072"
                yield [line, patient, 4, 96 * i, tumor, tumor, 7, center, int(i == 10)]
                line += 1


def write_table(root, table, columns=HEADER):
    (root / "camelyon17_v1.0").mkdir(exist_ok=True)
    with (root / "camelyon17_v1.0" / "metadata.csv").open("w", newline="") as file:
        csv.writer(file).writerows([columns, *table])


@pytest.fixture
def camelyon(tmp_path):
    for _, patient, node, x, y, tumor, *_ in rows():
        slide = f"patient_{patient}_node_{node}"
        draw(tmp_path / "camelyon17_v1.0/patches" / slide / f"patch_{slide}_x_{x}_y_{y}.png", size=(9, 9), value=tumor)
    write_table(tmp_path, rows())
    return tmp_path


@pytest.mark.parametrize("inside", ["", "camelyon17_v1.0"])
def test_hospitals_are_domains_and_a_fifth_of_training_is_validation(camelyon, inside):
    dataset = load("camelyon17", path=camelyon / inside)
    assert (dataset.class_names, dataset.domain_names) == (("normal", "tumor"), ("center_0", "center_3"))
    assert dataset.inputs[:, 0, 0, 0].tolist() == dataset.labels.tolist() == [1] * 22 + [0] * 22
    assert dataset.is_test.tolist() == ([False] * 10 + [True]) * 4
    assert "44 of the 455,954 examples that were published" in dataset.notes
    for domain in (0, 1):
        for label in (0, 1):
            assert dataset.is_valid[(dataset.domains == domain) & (dataset.labels == label)].sum() == 2


def test_each_hospital_becomes_a_client(camelyon):
    federation = federate(load("camelyon17", path=camelyon), by_domain(), 2, local_test=True, equal_train=True)
    assert federation.client_names == ("center_0", "center_3")
    assert federation.data.train.count.tolist() == [16, 16]
    assert federation.data.valid.count.tolist() == [4, 4]
    assert federation.data.test.count.tolist() == [2, 2]


def test_patients_without_leading_zeros_are_read(camelyon):
    write_table(camelyon, [[row[0], int(row[1]), *row[2:]] for row in rows()])
    assert len(load("camelyon17", path=camelyon).labels) == 44


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        (3, 5, r"metadata\.csv, line 2: .*_x_5_y_1\.png does not exist"),
        (5, 2, "line 2: tumor is 2"),
        (8, 3, "split is 3"),
        (7, "west", "line 2: center is 'west', not a whole number"),
    ],
)
def test_an_invalid_row_is_named(camelyon, place, value, message):
    table = list(rows())
    table[0][place] = value
    write_table(camelyon, table)
    refuse(message, "camelyon17", camelyon)


def test_an_invalid_table_is_named(camelyon, tmp_path):
    write_table(camelyon, [row[:-1] for row in rows()], HEADER[:-1])
    refuse("has no column 'split'", "camelyon17", camelyon)
    write_table(camelyon, [row[:-1] for row in rows()])
    refuse(r"line 2: 8 cells for 9 columns", "camelyon17", camelyon)
    write_table(camelyon, [])
    refuse("has no rows", "camelyon17", camelyon)
    refuse(
        r"holds no metadata\.csv.*https://wilds\.stanford\.edu", "camelyon17", camelyon / "camelyon17_v1.0" / "patches"
    )

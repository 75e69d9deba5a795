"""Camelyon17 in the layout of WILDS: a table, and patches in a folder per slide."""

import csv

import pytest

from fedjax_het.data import by_domain, federate, load
from fedjax_het.errors import InputError
from tests.data.sources.image_files import draw

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


def write(root, table, columns=HEADER):
    (root / "camelyon17_v1.0").mkdir(exist_ok=True)
    with (root / "camelyon17_v1.0" / "metadata.csv").open("w", newline="") as file:
        csv.writer(file).writerows([columns, *table])


@pytest.fixture
def root(tmp_path):
    for _, patient, node, x, y, tumor, *_ in rows():
        slide = f"patient_{patient}_node_{node}"
        draw(tmp_path / "camelyon17_v1.0/patches" / slide / f"patch_{slide}_x_{x}_y_{y}.png", size=(9, 9), value=tumor)
    write(tmp_path, rows())
    return tmp_path


@pytest.mark.parametrize("inside", ["", "camelyon17_v1.0"])
def test_hospitals_are_domains_and_a_fifth_of_training_is_validation(root, inside):
    dataset = load("camelyon17", path=root / inside)
    assert (dataset.class_names, dataset.domain_names) == (("normal", "tumor"), ("center_0", "center_3"))
    assert dataset.inputs[:, 0, 0, 0].tolist() == dataset.labels.tolist() == [1] * 22 + [0] * 22
    assert dataset.is_test.tolist() == ([False] * 10 + [True]) * 4
    assert "44 of the 455,954 examples that were published" in dataset.notes
    for domain in (0, 1):
        for label in (0, 1):
            assert dataset.is_valid[(dataset.domains == domain) & (dataset.labels == label)].sum() == 2


def test_each_hospital_becomes_a_client(root):
    federation = federate(load("camelyon17", path=root), by_domain(), 2, local_test=True, equal_train=True)
    assert federation.client_names == ("center_0", "center_3")
    assert federation.data.train.count.tolist() == [16, 16]
    assert federation.data.valid.count.tolist() == [4, 4]
    assert federation.data.test.count.tolist() == [2, 2]


def test_patients_without_leading_zeros_are_read(root):
    write(root, [[row[0], int(row[1]), *row[2:]] for row in rows()])
    assert len(load("camelyon17", path=root).labels) == 44


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        (3, 5, r"metadata\.csv, line 2: .*_x_5_y_1\.png does not exist"),
        (5, 2, "line 2: tumor is 2"),
        (8, 3, "split is 3"),
        (7, "west", "line 2: center is 'west', not a whole number"),
    ],
)
def test_an_invalid_row_is_named(root, place, value, message):
    table = list(rows())
    table[0][place] = value
    write(root, table)
    with pytest.raises(InputError, match=message):
        load("camelyon17", path=root)


def test_an_invalid_table_is_named(root, tmp_path):
    write(root, [row[:-1] for row in rows()], HEADER[:-1])
    with pytest.raises(InputError, match="has no column 'split'"):
        load("camelyon17", path=root)
    write(root, [row[:-1] for row in rows()])
    with pytest.raises(InputError, match=r"line 2: 8 cells for 9 columns"):
        load("camelyon17", path=root)
    write(root, [])
    with pytest.raises(InputError, match="has no rows"):
        load("camelyon17", path=root)
    with pytest.raises(InputError, match=r"holds no metadata\.csv.*https://wilds\.stanford\.edu"):
        load("camelyon17", path=root / "camelyon17_v1.0" / "patches")

"""Retina and COVID-FL in the layout of the SSL-FL benchmark."""

import os
from pathlib import Path

import numpy as np
import pytest

from fedjax_het.data import by_domain, federate, load
from fedjax_het.errors import InputError
from tests.data.sources.image_files import draw

CLIENTS = {"client_1": ["a.npy", "b.npy"], "client_2": ["c.npy"], "client_10": ["d.npy"]}


@pytest.fixture
def retina(tmp_path):
    """Three clients with four images, and a common test list of two; values tell the files apart."""
    root = tmp_path / "Retina"
    for folder, names in (("train", "abcd"), ("test", "ef")):
        (root / folder).mkdir(parents=True)
        for i, name in enumerate(names):
            np.save(root / folder / f"{name}.npy", np.full((6, 5, 3), 10.4 + i, np.float32))
    (root / "5_clients" / "split_1").mkdir(parents=True)
    for client, files in CLIENTS.items():
        (root / "5_clients" / "split_1" / f"{client}.csv").write_text("\n".join(files) + "\n")
    (root / "test.csv").write_text("e.npy,0\nf.npy,1\n")
    (root / "labels.csv").write_text("".join(f"{name}.npy,{i % 2}.0\n" for i, name in enumerate("abcdef")))
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
    with pytest.raises(InputError, match=message):
        load("retina", path=retina)


def test_a_pickled_array_and_a_file_cut_short_are_refused(retina):
    np.save(retina / "train" / "a.npy", np.array([{}], object), allow_pickle=True)
    with pytest.raises(InputError, match=r"cannot read .*a\.npy.*Python objects"):
        load("retina", path=retina)
    (retina / "train" / "a.npy").write_bytes((retina / "train" / "b.npy").read_bytes()[:-9])
    with pytest.raises(InputError, match=r"cannot read .*a\.npy"):
        load("retina", path=retina)


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
    with pytest.raises(InputError, match=message):
        load("retina", path=retina)


def test_a_repeated_line_counts_once_and_is_noted(retina):
    (retina / "5_clients" / "split_1" / "client_2.csv").write_text("c.npy\nc.npy\n")
    dataset = load("retina", path=retina)
    assert len(dataset.labels) == 6
    assert "client_2.csv repeats 1 lines, which count once" in dataset.notes


def test_the_error_for_a_missing_split_names_the_existing_ones(retina):
    with pytest.raises(InputError, match=r"split_3 holds no lists of clients. There are 5_clients/split_1 in"):
        load("retina", path=retina, split="5_clients/split_3")


def test_covid_fl_with_files_of_two_kinds_is_read(tmp_path):
    root = tmp_path / "COVID-FL"
    draw(root / "train" / "a.png", size=(8, 5), mode="L", value=9), draw(root / "train" / "b.jpg", size=(5, 7))
    draw(root / "test" / "c.png")
    (root / "12_clients" / "split_real").mkdir(parents=True)
    (root / "12_clients" / "split_real" / "bimcv.csv").write_text("a.png,2\n")
    (root / "12_clients" / "split_real" / "rsna-0.csv").write_text("b.jpg,0\n")
    (root / "test.csv").write_text("c.png\n")
    (root / "labels.csv").write_text("a.png,2\nb.jpg,0\nc.png,1\n")
    dataset = load("covid_fl", path=root, size=4)
    assert dataset.inputs.shape == (3, 4, 4, 3) and (dataset.inputs[0] == 9).all()
    assert dataset.domain_names == ("bimcv", "rsna-0", "test")
    assert dataset.labels.tolist() == [2, 0, 1] and dataset.class_names == ("0", "1", "2")


def test_unreadable_lists_are_an_error_and_not_ignored(retina, monkeypatch):
    folder = retina / "5_clients" / "split_1"
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != folder)
    with pytest.raises(InputError, match=f"cannot read {folder}: Permission denied"):
        load("retina", path=retina.parent)

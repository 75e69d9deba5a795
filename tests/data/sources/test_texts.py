"""Texts by author as sequences of characters."""

import gzip
import json

import numpy as np
import pytest

from fedjax_het.data import by_domain, federate, iid, load
from fedjax_het.errors import InputError
from tests.data.sources.image_files import refuse
from tests.shared import shared_path

TEXTS = {"Ann": ["abcdef", "ba", "f"], "Bob": ["cab"]}


@pytest.fixture
def path(tmp_path):
    file = tmp_path / "plays.json.gz"
    file.write_bytes(gzip.compress(json.dumps(TEXTS).encode()))
    return tmp_path


def decode(dataset, tokens) -> str:
    return "".join("_" if token < 0 else dataset.class_names[token] for token in tokens)


def test_every_character_is_predicted_once_and_padding_is_labelled_minus_one(path):
    dataset = load("texts", path=path, length=3, held_out=0.4)
    assert dataset.name == "plays" and dataset.class_names == (" ", "a", "b", "c", "d", "e", "f")
    assert [decode(dataset, row) for row in dataset.labels] == ["bcd", "ef_", "a__", "ab_"]
    assert [decode(dataset, row)[:n] for row, n in zip(dataset.inputs, (3, 2, 1, 2), strict=True)] == [
        *("abc", "de", "b", "ca")
    ]
    assert dataset.is_test.tolist() == [False] * 4  # Ann's last text has nothing to predict
    assert dataset.class_counts.sum() == 8 and dataset.class_counts[0].tolist() == [0, 1, 1, 1, 1, 1, 1]
    assert not dataset.is_segmentation and not dataset.has_label_per_example


def test_next_characters_have_windows_that_begin_before_the_text(path):
    dataset = load("texts", path=path, targets="next", length=3, held_out=0.0)
    rows = [(decode(dataset, x), dataset.class_names[y]) for x, y in zip(dataset.inputs, dataset.labels, strict=True)]
    assert rows[:3] == [("   ", "a"), ("  a", "b"), (" ab", "c")] and len(rows) == 12
    assert dataset.labels.dtype == np.int32 and dataset.inputs.dtype == np.int8
    assert len(load("texts", path=path, targets="next", length=3, held_out=0.0, stride=2).labels) == 7


def test_an_authors_last_texts_are_the_test_split(path):
    dataset = load("texts", path=path, targets="next", length=2)
    assert [decode(dataset, [y]) for y in dataset.labels[dataset.is_test]] == ["f"]
    federation = federate(dataset, by_domain(), 0)
    assert federation.client_names == ("Ann", "Bob") and int(federation.test.count) == 1


def test_number_of_clients_zero_leaves_newcomers_their_domains(path):
    dataset = load("texts", path=path, targets="next", length=2)
    federation = federate(dataset, by_domain(), 0, unseen_clients=1)
    assert (federation.num_clients, federation.num_newcomers) == (1, 1)
    with pytest.raises(InputError, match=r"num_clients: 0 means one client for each domain.* has 2 for 2"):
        federate(dataset, by_domain(), 0, unseen_clients=2)


def test_tokens_are_not_standardised_and_sequences_have_no_class(path):
    dataset = load("texts", path=path)
    with pytest.raises(InputError, match="tokens, whose numbers are names"):
        federate(dataset, iid(), 2, standardise=True)


@pytest.mark.parametrize("content", ['["a"]', "{}", '{"Ann": []}', '{"Ann": "text"}', '{"Ann": [1]}'])
def test_a_file_of_another_form_is_refused(tmp_path, content):
    (tmp_path / "a.json").write_text(content)
    refuse("is not of the form", "texts", tmp_path / "a.json")


def test_a_folder_without_its_one_file_is_refused(tmp_path, path):
    (path / "other.json").write_text("{}")
    refuse(r"must hold one .*holds other.json, plays.json.gz", "texts", path)
    refuse("no domain has 9 examples", "texts", path / "plays.json.gz", min_examples=9)


def test_the_roles_of_shakespeare_are_read():
    dataset = load("texts", path=shared_path("data/shakespeare"), min_examples=20)
    assert dataset.num_classes == 65 and len(dataset.domain_names) == 133
    assert dataset.inputs.shape[1] == 80 and dataset.is_test.any()


def test_a_byte_order_mark_is_no_part_of_the_texts(tmp_path):
    (tmp_path / "plays.json").write_text(json.dumps(TEXTS), encoding="utf-8-sig")
    assert load("texts", path=tmp_path, length=3).domain_names == ("Ann", "Bob")

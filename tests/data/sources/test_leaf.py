"""LEAF's JSON files, written as its preprocess.sh writes them."""

import json

import numpy as np
import pytest

from fedjax_het.data import by_domain, federate, load
from tests.data.sources.image_files import refuse

ROLES = {
    "train": {"HAMLET": [("  to be or", " "), (" to be or ", "n")], "OPHELIA": [("my lord, I", " ")]},
    "test": {"HAMLET": [("to be or n", "o")], "OPHELIA": [("y lord, I ", "$")]},
}


def leaf_json(users: dict) -> dict:
    """{name: [(x, y), ...]} in LEAF's form."""
    data = {name: {"x": [x for x, _ in pairs], "y": [y for _, y in pairs]} for name, pairs in users.items()}
    return {"users": list(users), "num_samples": [len(pairs) for pairs in users.values()], "user_data": data}


def write_leaf(folder, splits: dict):
    for split, users in splits.items():
        (folder / split).mkdir(parents=True)
        (folder / split / f"all_data_niid_0_keep_0_{split}_9.json").write_text(json.dumps(leaf_json(users)))
    return folder


def test_shakespeare_gives_characters_and_roles(tmp_path):
    write_leaf(tmp_path / "data", ROLES)
    dataset = load("shakespeare", path=tmp_path)
    assert dataset.has_tokens and dataset.num_classes == 81
    assert dataset.class_names[:3] == ("\\n", " ", "!") and dataset.class_names[-1] == "$"
    text = ["".join(np.array(dataset.class_names)[row]) for row in dataset.inputs]
    assert text == [x for users in ROLES.values() for pairs in users.values() for x, _ in pairs]
    assert [dataset.class_names[label] for label in dataset.labels] == [" ", "n", " ", "o", "$"]
    assert [dataset.domain_names[i] for i in dataset.domains] == ["HAMLET", "HAMLET", "OPHELIA", "HAMLET", "OPHELIA"]
    assert dataset.is_test.tolist() == [False] * 3 + [True] * 2
    assert dataset.notes == ("1 characters that LEAF's alphabet lacks: $",)
    federation = federate(dataset, by_domain(), 0, local_test=True)
    assert federation.client_names == ("HAMLET", "OPHELIA")
    assert federation.data.train.count.tolist() == [2, 1] and federation.data.test.count.tolist() == [1, 1]
    assert federation.prepare(dataset.inputs[:2]).dtype == np.int32


def test_roles_and_windows_are_thinned(tmp_path):
    write_leaf(tmp_path, ROLES)
    dataset = load("shakespeare", path=tmp_path, min_examples=3, stride=2)
    assert dataset.domain_names == ("HAMLET",) and len(dataset.labels) == 2
    refuse("no domain has 9 examples", "shakespeare", tmp_path, min_examples=9)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda content: content.pop("num_samples"), "needs users, num_samples and user_data"),
        (lambda content: content["num_samples"].__setitem__(0, 7), "HAMLET lacks the 7 x and y"),
        (lambda content: content["users"].append("X"), "users and num_samples differ in length"),
        (lambda content: content["user_data"]["HAMLET"]["y"].__setitem__(0, "ab"), "HAMLET has the label 'ab'"),
        (lambda content: content["user_data"]["HAMLET"]["x"].__setitem__(0, "short"), "windows of HAMLET are"),
    ],
)
def test_a_damaged_file_is_refused(tmp_path, change, message):
    write_leaf(tmp_path, ROLES)
    file = next((tmp_path / "train").glob("*.json"))
    content = json.loads(file.read_text())
    change(content)
    file.write_text(json.dumps(content))
    refuse(message, "shakespeare", tmp_path)


def test_missing_files_are_named(tmp_path):
    refuse(r"holds no JSON files of LEAF.*preprocess.sh", "shakespeare", tmp_path)
    write_leaf(tmp_path, {"train": ROLES["train"]})
    refuse(r"train/\*\.json and no test/\*\.json", "femnist", tmp_path)
    (tmp_path / "test").mkdir()
    (tmp_path / "test" / "a.json").write_text('{"users": ["a"')
    refuse(r"a\.json.*(damaged|cut short)", "shakespeare", tmp_path)


IMAGES = np.random.default_rng(0).integers(0, 256, (5, 784))


def writers(images=IMAGES) -> dict:
    pairs = [((image / 255).tolist(), label) for image, label in zip(images, (0, 10, 36, 61, 5), strict=True)]
    return {"train": {"f0000_14": pairs[:2], "f0001_41": pairs[2:4]}, "test": {"f0000_14": pairs[4:], "f0001_41": []}}


def test_femnist_gives_images_and_writers(tmp_path):
    write_leaf(tmp_path, writers())
    dataset = load("femnist", path=tmp_path, cache=tmp_path / "cache")
    np.testing.assert_array_equal(dataset.inputs, IMAGES.reshape(5, 28, 28, 1))
    assert [dataset.class_names[i] for i in dataset.labels] == ["0", "A", "a", "z", "5"]
    assert dataset.domain_names == ("f0000_14", "f0001_41") and dataset.domains.tolist() == [0, 0, 1, 1, 0]
    assert dataset.is_test.tolist() == [False] * 4 + [True]
    fewer = load("femnist", path=tmp_path, cache=tmp_path / "cache", min_examples=3)
    assert fewer.domain_names == ("f0000_14",) and len(fewer.inputs) == 3
    assert fewer.notes == ("1 domains of fewer than 3 examples are skipped: f0001_41",)


@pytest.mark.parametrize(
    ("images", "message"),
    [(IMAGES[:, :700], r"are \(2, 700\).*not \[2, 784\] in 0..1"), (IMAGES * 255, r"from 0 to 255, not")],
)
def test_femnist_images_of_another_form_are_refused(tmp_path, images, message):
    write_leaf(tmp_path, writers(images))
    refuse(message, "femnist", tmp_path, cache=tmp_path / "cache")


@pytest.mark.parametrize(("source", "splits"), [("shakespeare", ROLES), ("femnist", writers())])
def test_files_without_a_user_add_nothing(tmp_path, source, splits):
    write_leaf(tmp_path, splits)
    whole = load(source, path=tmp_path)
    for split in splits:
        (tmp_path / split / f"all_data_niid_1_keep_100_{split}_9.json").write_text(json.dumps(leaf_json({})))
    dataset = load(source, path=tmp_path)
    np.testing.assert_array_equal(dataset.inputs, whole.inputs)
    np.testing.assert_array_equal(dataset.labels, whole.labels)
    assert dataset.domain_names == whole.domain_names and dataset.is_test.tolist() == whole.is_test.tolist()


def test_a_byte_order_mark_is_no_part_of_the_content(tmp_path):
    write_leaf(tmp_path, ROLES)
    for file in tmp_path.glob("*/*.json"):
        file.write_text(file.read_text(), encoding="utf-8-sig")
    assert load("shakespeare", path=tmp_path).domain_names == ("HAMLET", "OPHELIA")

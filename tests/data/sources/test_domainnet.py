"""DomainNet's folders and lists."""

import os
from pathlib import Path

import pytest

from fedjax_het.data import federate, iid, load
from fedjax_het.errors import InputError
from tests.data.sources.image_files import draw

CLASSES = ("ant", "bee hive", "cat")


@pytest.fixture
def root(tmp_path):
    for domain in ("clipart", "real", "sketch"):
        lines = {"train": [], "test": []}
        for label, name in enumerate(CLASSES):
            for i, split in enumerate(("train", "train", "test")):
                file = f"{domain}/{name}/{domain}_{label}_{i}.jpg"
                draw(tmp_path / "domainnet" / file, size=(4 + i, 6), value=label)
                lines[split].append(f"{file} {label}")
        if domain != "sketch":
            write(tmp_path, domain, **lines)
    return tmp_path


def write(root, domain, **lines):
    folder = root / "domainnet" / "splits_mini"
    folder.mkdir(exist_ok=True)
    for split, each in lines.items():
        (folder / f"{domain}_{split}.txt").write_text("\n".join(each) + "\n")


@pytest.mark.parametrize("inside", ["", "domainnet"])
def test_domains_with_lists_are_read(root, inside):
    dataset = load("mini_domainnet", path=root / inside, size=8)
    assert (dataset.name, dataset.domain_names) == ("mini_domainnet", ("clipart", "real"))
    assert dataset.class_names == CLASSES
    assert dataset.inputs.shape == (18, 8, 8, 3)
    assert dataset.labels.tolist() == [0, 0, 1, 1, 2, 2, 0, 1, 2] * 2
    assert dataset.is_test.tolist() == ([False] * 6 + [True] * 3) * 2
    assert federate(dataset, iid(), 2).test.index.tolist() == [6, 7, 8, 15, 16, 17]


def test_the_whole_of_domainnet_is_read_and_an_unused_label_is_noted(root):
    (root / "domainnet" / "splits_mini").rename(root / "domainnet" / "splits")
    for domain in ("clipart", "real"):
        for file in (root / "domainnet" / "splits").glob(f"{domain}_*"):
            file.write_text("".join(line for line in file.read_text().splitlines(True) if "bee" not in line))
    dataset = load("mini_domainnet", path=root, lists="splits", size=8)
    assert (dataset.name, dataset.class_names) == ("domainnet", ("ant", "class_1", "cat"))
    assert "no list has labels [1]" in dataset.notes
    with pytest.raises(InputError, match=r"holds no splits_mini.*ai\.bu\.edu"):
        load("mini_domainnet", path=root)


@pytest.mark.parametrize(
    ("train", "message"),
    [
        (["real/ant/real_0_0.jpg 1"], r"label 1 for ant, but elsewhere 1 is bee hive and ant is 0"),
        (["real/ant/real_0_9.jpg 0"], r"real_train\.txt, line 1: .*real_0_9\.jpg does not exist"),
        (["", "real/ant/real_0_0.jpg zero"], r"real_train\.txt, line 2: .* is not '<file> <label>'"),
        (["sketch/cat/sketch_2_0.jpg 3"], r"line 1: sketch/cat/sketch_2_0\.jpg is of another domain"),
        (["real/cat/real_2_0.jpg 3"], r"label 3 for cat, but elsewhere 3 is cat and cat is 2"),
    ],
)
def test_lists_that_contradict_are_named(root, train, message):
    write(root, "real", train=train)
    with pytest.raises(InputError, match=message):
        load("mini_domainnet", path=root, size=8)


def test_a_class_of_one_domain_and_a_missing_list_are_refused(root):
    write(root, "real", train=["real/ant/real_0_0.jpg 0"], test=["real/cat/real_2_2.jpg 2"])
    with pytest.raises(InputError, match="class 'bee hive' exists in domain 'clipart' only"):
        load("mini_domainnet", path=root, size=8)
    (root / "domainnet" / "splits_mini" / "real_test.txt").unlink()
    with pytest.raises(InputError, match=r"real_test\.txt does not exist"):
        load("mini_domainnet", path=root, size=8)


def test_mixed_sizes_are_refused_with_a_hint_at_size(root):
    with pytest.raises(InputError, match="Give `size`"):
        load("mini_domainnet", path=root)


def test_unreadable_lists_are_an_error_and_not_ignored(root, monkeypatch):
    folder = root / "domainnet" / "splits_mini"
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != folder)
    with pytest.raises(InputError, match=f"cannot read {folder}: Permission denied"):
        load("mini_domainnet", path=root)

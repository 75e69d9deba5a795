"""Image files in folders."""

import numpy as np
import pytest
from PIL import Image

from fedjax_het.data import load
from fedjax_het.errors import InputError
from tests.data.sources.image_files import draw, refuse


@pytest.fixture
def root(tmp_path):
    names = ("art/dog/1.png", "art/cat/1.png", "photo/dog/2.jpg", "photo/dog/1.JPEG", "sketch/cat/1.bmp")
    for i, name in enumerate(names):
        draw(tmp_path / name, value=10 * i)
    (tmp_path / "art" / "dog" / ".DS_Store").touch()
    (tmp_path / "photo" / "dog" / "notes.txt").touch()
    (tmp_path / ".git").mkdir()
    return tmp_path


def test_domains_and_classes_are_the_names_of_folders(root):
    dataset = load("folders", path=root, title="cats/and dogs")
    assert (dataset.name, dataset.inputs.shape) == ("cats/and dogs", (5, 4, 6, 3))
    assert (dataset.domain_names, dataset.class_names) == (("art", "photo", "sketch"), ("cat", "dog"))
    assert dataset.domains.tolist() == [0, 0, 1, 1, 2]
    assert dataset.labels.tolist() == [0, 1, 1, 1, 0]
    assert dataset.inputs[:, 0, 0, 0].tolist() == [10, 0, 30, 20, 40]
    assert isinstance(dataset.inputs, np.memmap) and dataset.splits["train"].all()


@pytest.mark.parametrize(("prefix", "domains"), [("", ("all",)), ("art/", ("art", "photo"))])
def test_folders_of_splits_become_the_published_split(tmp_path, prefix, domains):
    names = ("train/dog/1.png", "crossval/dog/2.png", "test/dog/3.png", "test/cat/4.png")
    for name in names:
        draw(tmp_path / prefix / name)
    if prefix:
        draw(tmp_path / "photo" / "dog" / "1.png"), draw(tmp_path / "photo" / "cat" / "1.png")
    dataset = load("folders", path=tmp_path)
    assert (dataset.domain_names, dataset.class_names) == (domains, ("cat", "dog"))
    assert dataset.is_valid.tolist()[:4] == [True, False, False, False]
    assert dataset.is_test.tolist()[:4] == [False, True, True, False]
    assert not (dataset.is_valid | dataset.is_test)[4:].any()


def test_clients_never_train_on_a_test_split_whatever_is_beside_it(tmp_path):
    for split, num in (("train", 3), ("val", 1), ("test", 2)):
        for folder in ("", "chest_xray", "__MACOSX"):
            for i in range(num):
                for name in ("sick", "well"):
                    draw(tmp_path / folder / split / name / ("._" * (folder == "__MACOSX") + f"{i}.png"))
    (tmp_path / "test" / "well" / "Thumbs.db").touch()
    dataset = load("folders", path=tmp_path, title="x")
    assert (dataset.domain_names, dataset.class_names) == (("all",), ("sick", "well"))
    assert {name: split.sum() for name, split in dataset.splits.items()} == {"train": 6, "valid": 2, "test": 4}
    assert dataset.notes == (f"skipped in {tmp_path.name} beside test, train, val: chest_xray",)


def test_classes_may_have_names_of_splits(tmp_path):
    for name in ("car/1.png", "train/1.png"):
        draw(tmp_path / name)
    assert load("folders", path=tmp_path).class_names == ("car", "train")


def test_every_common_format_is_read_and_other_files_are_counted(tmp_path):
    for suffix in ("png", "webp", "ppm", "BMP"):
        draw(tmp_path / "cat" / f"1.{suffix}"), draw(tmp_path / "dog" / f"1.{suffix}")
    (tmp_path / "dog" / "1.gif").touch(), (tmp_path / "cat" / "2.gif").touch(), (tmp_path / "cat" / "README").touch()
    dataset = load("folders", path=tmp_path)
    assert np.bincount(dataset.labels).tolist() == [4, 4]
    assert dataset.notes == ("skipped by suffix: 2 .gif, 1 without suffix",)
    (tmp_path / "cow").mkdir(), (tmp_path / "cow" / "1.gif").touch()
    refuse(r"cow is a class folder without images, it holds 1 \.gif", "folders", tmp_path)


def test_a_class_of_one_domain_is_refused_unless_allowed(root):
    draw(root / "photo" / "dogs" / "1.png")
    refuse(r"class 'dogs' exists in domain 'photo' only.*lone_classes. Did you mean 'dog'", "folders", root)
    assert load("folders", path=root, lone_classes=True).class_names == ("cat", "dog", "dogs")


def test_folders_without_domains_have_one_domain(root, monkeypatch):
    monkeypatch.chdir(root)
    assert load("folders", path=".").name == root.name
    dataset = load("folders", path=root / "art")
    assert (dataset.domain_names, dataset.class_names) == (("all",), ("cat", "dog"))


def test_size_and_channels_convert_all_images(root):
    draw(root / "art" / "cat" / "grey.png", mode="L", value=77)
    refuse(r"grey\.png is grey and .*1\.png is in color. Give `channels`", "folders", root)
    draw(root / "art" / "cat" / "grey.png", size=(9, 9), mode="L", value=77)
    refuse(r"1\.png is 6 x 4 and .*grey\.png is 9 x 9 pixels. Give `size`", "folders", root, channels=3)
    dataset = load("folders", path=root, size=5, channels=3)
    assert dataset.inputs.shape == (6, 5, 5, 3)
    assert (dataset.inputs[1] == 77).all()
    assert load("folders", path=root, size=5, channels=1).inputs.shape == (6, 5, 5, 1)
    assert load("folders", path=root / "art", size=5, channels=1).inputs[0].tolist() == [[[10]] * 5] * 5


@pytest.mark.parametrize("content", [b"", b"not an image"])
def test_a_file_that_is_not_an_image_is_named(root, content):
    (root / "art" / "dog" / "bad.png").write_bytes(content)
    refuse(r"cannot read .*bad\.png", "folders", root)


@pytest.mark.parametrize("name", ["art/dog/1.png", "photo/dog/2.jpg"])
def test_an_image_cut_short_is_named(root, name):
    data = (root / name).read_bytes()
    (root / name).write_bytes(data[: len(data) * 2 // 3])
    refuse(f"cannot read .*{name}", "folders", root)


def test_an_image_of_16_bits_is_refused(root):
    draw(root / "art" / "dog" / "deep.png", mode="I;16", value=40_000)
    refuse(r"deep\.png has more than 8 bits", "folders", root, channels=1)


@pytest.mark.parametrize("suffix", ["tif", "webp"])
def test_a_file_of_several_images_is_refused(root, suffix):
    frames = [Image.new("RGB", (6, 4), value) for value in ("red", "blue")]
    frames[0].save(root / "art" / "dog" / f"stack.{suffix}", save_all=True, append_images=frames[1:])
    refuse(rf"stack\.{suffix} holds 2 images", "folders", root)


def test_unknown_layouts_are_refused(root):
    draw(root / "art" / "stray.png")
    refuse(r"art holds images that are in no class folder, as stray\.png", "folders", root)
    (root / "none").mkdir()
    refuse("none has no class folders", "folders", root / "none")
    refuse("is not a folder", "folders", root / "art" / "stray.png")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"channels": 4}, "channels: must be 1"),
        ({"size": 0}, "size: must be a whole number"),
        ({"path": "no"}, "no does not"),
    ],
)
def test_impossible_options_are_named_in_the_error(root, options, message):
    with pytest.raises(InputError, match=message):
        load("folders", **({"path": root} | options))


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("digit", {}, "called 'digit'. Did you mean 'digits'"),
        ("arrays", {}, "missing a required argument: 'path'.*It takes arrays"),
        ("folders", {"path": "x", "sise": 3}, "unexpected keyword argument 'sise'.*size"),
    ],
)
def test_unknown_names_and_options_are_refused(name, options, message):
    with pytest.raises(InputError, match=message):
        load(name, **options)

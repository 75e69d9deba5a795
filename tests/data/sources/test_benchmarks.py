"""SVHN, CINIC-10 and Tiny-ImageNet in the files in which they are published."""

import numpy as np
import pytest
from scipy.io import savemat

from fedjax_het.data import load
from fedjax_het.errors import InputError
from tests.data.sources.image_files import draw

RNG = np.random.default_rng(0)


def write_svhn(folder, name, labels):
    images = RNG.integers(0, 256, (32, 32, 3, len(labels))).astype(np.uint8)
    savemat(folder / f"{name}_32x32.mat", {"X": images, "y": np.array(labels, np.uint8)[:, None]})
    return images.transpose(3, 0, 1, 2)


def test_svhn_is_read_from_its_matlab_files(tmp_path):
    train, test = write_svhn(tmp_path, "train", [1, 10, 9]), write_svhn(tmp_path, "test", [10, 2])
    dataset = load("svhn", path=tmp_path)
    np.testing.assert_array_equal(dataset.inputs, np.concatenate([train, test]))
    assert dataset.labels.tolist() == [1, 0, 9, 0, 2] and dataset.is_test.tolist() == [False] * 3 + [True] * 2
    extra = write_svhn(tmp_path, "extra", [3])
    dataset = load("svhn", path=tmp_path, extra=True)
    np.testing.assert_array_equal(dataset.inputs[3:4], extra)
    assert dataset.is_test.tolist() == [False] * 4 + [True] * 2
    assert load("svhn", path=tmp_path, size=8).inputs.shape == (5, 8, 8, 3)


def test_damaged_files_of_svhn_are_refused(tmp_path):
    with pytest.raises(InputError, match=r"train_32x32.mat does not exist"):
        load("svhn", path=tmp_path)
    write_svhn(tmp_path, "train", [0])
    write_svhn(tmp_path, "test", [1])
    with pytest.raises(InputError, match=r"train_32x32.mat holds X .*with labels 1 to 10"):
        load("svhn", path=tmp_path)
    savemat(tmp_path / "train_32x32.mat", {"X": np.zeros((2, 2))})
    with pytest.raises(InputError, match=r"cannot read .*train_32x32.mat"):
        load("svhn", path=tmp_path)
    (tmp_path / "train_32x32.mat").write_bytes(b"no matrix")
    with pytest.raises(InputError, match=r"cannot read .*train_32x32.mat"):
        load("svhn", path=tmp_path)


@pytest.fixture
def cinic(tmp_path):
    for split in ("train", "valid", "test"):
        draw(tmp_path / "cinic" / split / "airplane" / f"cifar10-{split}-1.png", size=(4, 4))
        draw(tmp_path / "cinic" / split / "truck" / "n02123394_7.png", size=(4, 4))
    return tmp_path / "cinic"


def test_cinic_has_three_splits_and_two_origins(cinic, tmp_path):
    dataset = load("cinic10", path=cinic, cache=tmp_path / "cache")
    assert dataset.inputs.shape == (6, 4, 4, 3) and dataset.num_classes == 10
    assert dataset.domain_names == ("cifar10", "imagenet")
    assert dataset.labels.tolist() == [0, 9] * 3 and dataset.domains.tolist() == [0, 1] * 3
    assert [int(is_member.sum()) for is_member in dataset.splits.values()] == [2, 2, 2]
    assert dataset.notes == ("6 of the 270,000 examples that were published",)


def test_cinic_of_another_form_is_refused(cinic, tmp_path):
    draw(cinic / "test" / "lorry" / "a.png", size=(4, 4))
    with pytest.raises(InputError, match="lorry is no class of CINIC-10"):
        load("cinic10", path=cinic, cache=tmp_path / "cache")
    with pytest.raises(InputError, match="must hold the folders train, valid and test, and holds none"):
        load("cinic10", path=cinic / "test")


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
        dataset = load("tiny_imagenet", path=path, cache=tmp_path / "cache")
        assert dataset.class_names == ("n02", "n01") and dataset.inputs.shape == (3, 4, 4, 3)
        assert dataset.labels.tolist() == [1, 0, 1] and dataset.is_test.tolist() == [False, False, True]


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        ("wnids.txt", "n01\n", "n02 is of no class in wnids.txt"),
        ("val/val_annotations.txt", "val_0.JPEG\tn07\n", r"line 1: 'val_0.JPEG n07' names no class"),
        ("val/val_annotations.txt", "\nval_9.JPEG\tn01\n", r"line 2: .*val_9.JPEG does not exist"),
        ("val/val_annotations.txt", None, "val_annotations.txt does not exist"),
        ("wnids.txt", None, "holds no wnids.txt"),
    ],
)
def test_tiny_imagenet_of_another_form_is_refused(tiny, tmp_path, file, text, message):
    (tiny / file).unlink() if text is None else (tiny / file).write_text(text)
    with pytest.raises(InputError, match=message):
        load("tiny_imagenet", path=tiny, cache=tmp_path / "cache")

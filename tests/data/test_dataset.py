"""Data sets: conversion of arrays, and errors for invalid arrays."""

import numpy as np
import pytest

from fedjax_het.data.assembly import assemble
from fedjax_het.data.sources._images import conform_images
from fedjax_het.errors import InputError

IMAGES = np.zeros((4, 5, 6), np.uint8)


def test_grey_images_gain_a_channel_axis_and_defaults_are_filled():
    dataset = assemble("x", IMAGES, np.array([0, 2, 1, 0], np.uint8))
    assert dataset.inputs.shape == (4, 5, 6, 1)
    assert dataset.labels.dtype == dataset.domains.dtype == np.int32
    assert (dataset.class_names, dataset.num_classes, dataset.domain_names) == (("0", "1", "2"), 3, ("all",))
    assert not (dataset.is_valid | dataset.is_test).any() and dataset.splits["train"].all()


def test_masks_are_bytes_and_memory_mapped_arrays_stay_memory_mapped(tmp_path):
    np.save(tmp_path / "images.npy", IMAGES[..., None]), np.save(tmp_path / "masks.npy", IMAGES % 2)
    mapped = [np.load(tmp_path / f"{name}.npy", mmap_mode="r") for name in ("images", "masks")]
    dataset = assemble("x", *mapped, class_names=["background", "nucleus"])
    assert isinstance(dataset.inputs, np.memmap) and isinstance(dataset.labels, np.memmap)
    assert dataset.is_segmentation and dataset.labels.dtype == np.uint8
    assert assemble("x", IMAGES, (IMAGES % 2).astype(np.int64)).labels.dtype == np.uint8
    assert np.shares_memory(assemble("x", vectors := np.ones((4, 2), np.float32), [0, 1, 0, 1]).inputs, vectors)


def test_floats_become_float32_and_keep_their_shape():
    assert assemble("x", np.ones((2, 3)), [0, 1]).inputs.dtype == np.float32


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"labels": [0, 1, 2, 7], "class_names": ["a", "b", "c"]}, r"labels\[3\] is 7.*0\.\.2"),
        ({"labels": [0, -1, 0, 0]}, r"labels\[1\] is -1"),
        ({"labels": [0.0, 1.0, 0.0, 1.0]}, "labels are float64, not integers"),
        ({"labels": [0, 1, 0]}, r"4 inputs but labels of shape \(3,\)"),
        ({"inputs": np.zeros((0, 2, 2), np.uint8), "labels": np.zeros(0, int)}, "no examples"),
        ({"inputs": np.array([[0.0], [1.0], [np.nan], [np.inf]])}, r"inputs\[2\] holds NaN or infinity; 2 of 4"),
        ({"inputs": np.full((4, 2), -2, np.int32)}, r"hold the token -2. Number tokens from 0; -1 is padding"),
        ({"inputs": np.full((4, 2), 7, np.int32), "vocabulary": 7}, r"hold the token 7. Number tokens from 0 to 6; -1"),
        ({"inputs": np.zeros((4, 2), np.uint8)}, r"uint8 images of shape \(4, 2\)"),
        ({"inputs": np.zeros((4, 2), np.int64)}, "inputs are int64"),
        ({"inputs": np.zeros(4)}, r"float32 of shape \(4,\)"),
        ({"domains": [0, 0, 1, 0], "domain_names": ["a"]}, r"domains\[2\] is 1"),
        ({"is_test": [True]}, r"is_test of shape \(1,\)"),
        (
            {"is_valid": [False, True, False, False], "is_test": [False, True, True, False]},
            "example 1 is in validation",
        ),
        ({"labels": IMAGES[:, 1:]}, r"labels of shape \(4, 4, 6\), not \(4, 5, 6\). Give every pixel one"),
        ({"labels": IMAGES + 2, "class_names": ["a", "b"]}, r"labels\[0, 0, 0\] is 2, but there are 2 label names"),
        ({"labels": ["dog", "cat", None, "dog"]}, r"labels\[2\] is None. Give each example one text"),
        ({"labels": ["dog", "cats", "dog", "cat"], "class_names": ["cat", "dog"]}, "'cats'.*Did you mean 'cat'"),
        ({"inputs": [[1.0], [1.0, 2.0], [1.0], [1.0]]}, "inputs cannot become one array.*the same shape"),
        ({"labels": IMAGES.astype(np.int64) + 300}, "labels are int32. Give integers from 0, as uint8"),
    ],
)
def test_impossible_arrays_are_named_in_the_error(changes, message):
    with pytest.raises(InputError, match=message):
        assemble("x", **({"inputs": IMAGES, "labels": [0, 1, 0, 1]} | changes))


@pytest.mark.parametrize("dtype", [np.uint8, np.int64])
def test_labels_in_one_column_are_those_of_the_examples(dtype):
    dataset = assemble("x", IMAGES, np.array([[0], [2], [1], [0]], dtype))
    assert (dataset.labels.tolist(), dataset.num_classes, dataset.notes) == ([0, 2, 1, 0], 3, ())


@pytest.mark.parametrize("dtype", [np.uint8, np.float64, bool])
def test_one_hot_labels_are_decoded_with_a_note(dtype):
    dataset = assemble("x", IMAGES, np.eye(4)[[0, 2, 1, 0]].astype(dtype))
    assert (dataset.labels.tolist(), dataset.class_names) == ([0, 2, 1, 0], ("0", "1", "2", "3"))
    assert dataset.notes == ("one-hot labels of shape (4, 4)",)


@pytest.mark.parametrize(("row", "kind"), [([1, 1, 0], "tags"), ([0, 0, -1], "tags"), ([0.5, 0.5, 0], "numbers")])
def test_several_labels_per_example_are_tags_or_numbers(row, kind):
    dataset = assemble("x", IMAGES, np.array([[1, 0, 0]] * 3 + [row]))
    assert (dataset.kind.name, dataset.labels[3].tolist(), dataset.num_classes) == (kind, row, 3)
    assert dataset.notes == (f"labels of shape (4, 3) are read as {kind}",)


def test_integers_that_may_be_several_classes_or_numbers_are_refused():
    labels = np.array([[1, 0, 0]] * 3 + [[0, 2, 1]])
    with pytest.raises(InputError, match=r"labels of shape \(4, 3\) are not one-hot.*one class each"):
        assemble("x", IMAGES, labels)
    assert assemble("x", IMAGES, labels, kind="numbers").kind.name == "numbers"


@pytest.mark.parametrize(
    ("labels", "names", "expected"),
    [
        (["dog", "cat", "dog"], ("cat", "dog"), [1, 0, 1]),
        ([["dog"], ["cat"], ["dog"]], ("cat", "dog"), [1, 0, 1]),
        (np.array(["dog", "cat", "dog"], object), ("cat", "dog"), [1, 0, 1]),
        (np.array(["b", "a", "b"], "S1"), ("a", "b"), [1, 0, 1]),
        ([True, False, True], ("False", "True"), [1, 0, 1]),
        ([2, 0, 2], ("0", "1", "2"), [2, 0, 2]),
    ],
)
def test_labels_that_are_texts_are_the_class_names_and_lists_are_arrays(labels, names, expected):
    dataset = assemble("x", [[[0, 1], [2, 255]]] * 3, labels, domains=["c_10", "c_2", "c_2"])
    assert (dataset.class_names, dataset.labels.tolist()) == (names, expected)
    assert (dataset.domain_names, dataset.domains.tolist()) == (("c_2", "c_10"), [1, 0, 0])
    assert (dataset.inputs.dtype, dataset.inputs.shape) == (np.uint8, (3, 2, 2, 1))
    assert "inputs of int64 in 0..255 are read as uint8 images" in dataset.notes


@pytest.mark.parametrize("dtype", [np.uint8, np.int64])
def test_masks_of_0_and_255_are_read_as_0_and_1_with_a_note(dtype):
    masks = (np.arange(120).reshape(4, 5, 6) % 3 == 0).astype(dtype) * 255
    for class_names in (None, ["background", "nucleus"]):
        dataset = assemble("x", IMAGES, masks, class_names=class_names)
        np.testing.assert_array_equal(dataset.labels, masks // 255)
        assert (dataset.num_classes, dataset.notes) == (2, ("masks of 0 and 255 are read as 0 and 1",))
    assert assemble("x", IMAGES, masks, class_names=range(256)).labels.max() == 255
    masks[0, 0, 0] = 7
    dataset = assemble("x", IMAGES, masks)
    assert dataset.labels.max() == 255 and "253 of 256 classes have no example (1, 2, 3, 4, 5" in dataset.notes[0]


@pytest.mark.parametrize(
    ("labels", "note"),
    [
        ([1, 2, 3, 1], "1 of 4 classes have no example (0): number the labels from 0"),
        ([7, 9, 0, 7], "7 of 10 classes have no example (1, 2, 3, 4, 5, 6, 8): number the labels from 0"),
    ],
)
def test_labels_with_gaps_are_noted_unless_classes_are_named(labels, note):
    dataset = assemble("x", IMAGES, labels)
    assert dataset.labels.tolist() == labels and dataset.notes[0].startswith(note)
    assert assemble("x", IMAGES, labels, class_names=range(11)).notes == ()


@pytest.mark.parametrize("shape", [(4, 3, 32, 32), (4, 1, 28, 28), (4, 3, 8, 9)])
@pytest.mark.parametrize("labels", [np.zeros(4, int), np.zeros((4, 8, 9), int)])
def test_images_with_the_channel_axis_first_are_refused(shape, labels):
    images = np.zeros(shape, np.uint8)
    for given in (images, images.astype(float)) if shape[2] == shape[3] else (images,):
        with pytest.raises(InputError, match=r"channel axis first. Give it last: np\.moveaxis\(images, 1, -1\)"):
            assemble("x", given, labels)
    with pytest.raises(InputError, match=r"np\.moveaxis\(images, 1, -1\)"):
        conform_images(images, 8, None)


def test_series_with_an_axis_of_one_row_are_no_images():
    assert assemble("x", np.zeros((4, 1, 128, 9)), [0, 1, 0, 1]).inputs.shape == (4, 1, 128, 9)

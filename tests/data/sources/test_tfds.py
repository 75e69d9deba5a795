"""Data sets of TensorFlow Datasets, as ArrayRecord files that it writes and reads without TensorFlow."""

import importlib.util
import io
import sys

import numpy as np
import pytest
from PIL import Image

from fedjax_het.data import load
from fedjax_het.errors import InputError
from tests.shared import shared_path

library = pytest.importorskip("tensorflow_datasets")

RNG = np.random.default_rng(0)
IMAGES = RNG.integers(0, 256, (9, 8, 6, 3)).astype(np.uint8)
LABELS = np.arange(9) % 3


def encode_png(image):
    buffer = io.BytesIO()
    Image.fromarray(image).save(buffer, "png")
    buffer.seek(0)
    return buffer


def prepare(folder, images=IMAGES, labels=LABELS, splits=(("train", 6), ("test", 9)), **changes):
    """Write a data set `tiny` of TFDS; examples keep their order. splits: (name, where it ends)."""
    features = {"image": library.features.Image(), "label": library.features.ClassLabel(names=["a", "b", "c"])}
    keys = ("image", "label")
    features, keys = changes.get("features", features), changes.get("supervised_keys", keys)

    class Tiny(library.core.GeneratorBasedBuilder, skip_registration=True):
        name = "tiny"
        VERSION = library.core.Version("1.0.0")

        def _info(self):
            features_dict = library.features.FeaturesDict(features)
            return library.core.DatasetInfo(
                builder=self, features=features_dict, supervised_keys=keys, disable_shuffling=True
            )

        def _split_generators(self, dl_manager):
            starts = [0, *(end for _, end in splits)]
            return {name: self._generate(start, end) for (name, end), start in zip(splits, starts, strict=False)}

        def _generate_examples(self):
            raise NotImplementedError

        def _generate(self, start, end):
            for i in range(start, end):
                values = {"image": encode_png(images[i]), "label": int(labels[i])}
                yield i, {name: values[name] for name in features}

    Tiny(data_dir=folder, file_format=changes.get("file_format", "array_record")).download_and_prepare()
    return folder


def test_images_labels_and_splits_are_read_without_tensorflow(tmp_path):
    dataset = load("tfds", builder="tiny", data_dir=str(prepare(tmp_path)))
    np.testing.assert_array_equal(dataset.inputs, IMAGES)
    np.testing.assert_array_equal(dataset.labels, LABELS)
    assert (dataset.name, dataset.class_names, dataset.domain_names) == ("tiny", ("a", "b", "c"), ("all",))
    assert dataset.is_test.tolist() == [False] * 6 + [True] * 3
    assert isinstance(dataset.inputs, np.memmap)
    assert "tensorflow" not in sys.modules or importlib.util.find_spec("tensorflow")


def test_validation_is_read_other_splits_are_skipped_and_images_are_resized(tmp_path):
    prepare(tmp_path, splits=(("train", 3), ("validation", 5), ("unlabelled", 9)))
    dataset = load("tfds", builder="tiny:1.0.0", data_dir=str(tmp_path), size=4, channels=1)
    assert dataset.inputs.shape == (5, 4, 4, 1)
    assert dataset.is_valid.tolist() == [False] * 3 + [True] * 2
    assert "skipped: unlabelled" in dataset.notes


def test_real_images_of_fashion_mnist_are_read(tmp_path):
    with np.load(shared_path("data/fashion_mnist/fashion_mnist.npz")) as file:
        images, labels = file["test_images"][:40], file["test_labels"][:40]
    features = {
        "image": library.features.Image(shape=(28, 28, 1)),
        "label": library.features.ClassLabel(num_classes=10),
    }
    prepare(tmp_path, images, labels, splits=(("train", 30), ("test", 40)), features=features)
    dataset = load("tfds", builder="tiny", data_dir=str(tmp_path))
    np.testing.assert_array_equal(dataset.inputs[..., 0], images)
    np.testing.assert_array_equal(dataset.labels, labels)
    assert dataset.class_names == tuple("0123456789")


def test_the_error_for_unprepared_data_says_how_to_prepare_them(tmp_path, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    message = r"cifar10 is not prepared: nothing in .*pip install tensorflow \(it is missing here\).*cifar10"
    with pytest.raises(InputError, match=message + r".*file_format=\"array_record\", data_dir=.*download_and_prepare"):
        load("tfds", builder="cifar10", data_dir=str(tmp_path))


def test_an_unknown_name_is_refused_with_a_similar_one(tmp_path):
    with pytest.raises(InputError, match=r"tfds knows no data set 'cifer10'.*Did you mean 'cifar10'"):
        load("tfds", builder="cifer10", data_dir=str(tmp_path))


def test_the_error_for_another_file_format_says_how_to_prepare_it(tmp_path):
    info = prepare(tmp_path) / "tiny" / "1.0.0" / "dataset_info.json"
    info.write_text(info.read_text().replace("array_record", "tfrecord"))
    with pytest.raises(InputError, match="is prepared as tfrecord, which cannot be read without TensorFlow"):
        load("tfds", builder="tiny", data_dir=str(tmp_path))


@pytest.mark.parametrize("changes", [{"supervised_keys": ("label", "image")}, {"supervised_keys": ("image", "image")}])
def test_data_other_than_images_with_a_class_are_refused(tmp_path, changes):
    with pytest.raises(InputError, match="tiny is not a data set of images with a class each"):
        load("tfds", builder="tiny", data_dir=str(prepare(tmp_path, **changes)))


def test_data_without_a_known_split_are_refused(tmp_path):
    prepare(tmp_path, splits=(("unlabelled", 9),))
    with pytest.raises(InputError, match="tiny has splits unlabelled, and none of train"):
        load("tfds", builder="tiny", data_dir=str(tmp_path))


def invert(data):
    middle = len(data) // 2
    return data[:middle] + bytes(255 - byte for byte in data[middle : middle + 300]) + data[middle + 300 :]


@pytest.mark.parametrize("spoil", [lambda data: data[: len(data) // 2], lambda data: b"", invert])
def test_damaged_files_are_named(tmp_path, spoil):
    (record,) = (prepare(tmp_path) / "tiny" / "1.0.0").glob("tiny-train*")
    record.write_bytes(spoil(record.read_bytes()))
    with pytest.raises(InputError, match=r"cannot read .*tiny/1\.0\.0"):
        load("tfds", builder="tiny", data_dir=str(tmp_path))

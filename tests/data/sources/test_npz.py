"""numpy's .npz files, one or a domain each."""

import numpy as np
import pytest

from fedjax_het.data import load
from fedjax_het.errors import InputError
from tests.shared import shared_path

IMAGES = np.arange(6 * 4 * 4, dtype=np.uint8).reshape(6, 4, 4)
LABELS = np.array([0, 1, 2, 0, 1, 2])


def save(path, **contents):
    np.savez(path, **({"images": IMAGES, "labels": LABELS} | contents))
    return path


def test_images_and_labels(tmp_path):
    dataset = load("arrays", path=save(tmp_path / "mine.npz", class_names=["a", "b", "c"]))
    assert (dataset.name, dataset.class_names) == ("mine", ("a", "b", "c"))
    np.testing.assert_array_equal(dataset.inputs[..., 0], IMAGES)


def test_own_test_split(tmp_path):
    path = tmp_path / "mine.npz"
    np.savez(path, train_images=IMAGES, train_labels=LABELS, test_images=IMAGES[:2], test_labels=LABELS[:2])
    dataset = load("arrays", path=str(path))
    assert dataset.is_test.tolist() == [False] * 6 + [True] * 2


@pytest.mark.parametrize(
    ("contents", "names"),
    [
        ({"domains": np.array(["y", "x"] * 3)}, ("x", "y")),
        ({"domains": [1, 0] * 3, "domain_names": ["x", "y"]}, ("x", "y")),
        ({"domains": [1, 0] * 3}, ("domain_0", "domain_1")),
    ],
)
def test_domains_by_name_or_by_number(tmp_path, contents, names):
    dataset = load("arrays", path=save(tmp_path / "mine.npz", **contents))
    assert dataset.domain_names == names
    assert dataset.domains.tolist() == [1, 0] * 3


@pytest.mark.parametrize("images", [IMAGES, IMAGES[..., None].astype(np.float32)], ids=["uint8", "float32"])
def test_a_directory_of_npy_files_is_mapped(tmp_path, images):
    is_test = np.arange(6) > 3
    for name, values in {"images": images, "labels": LABELS, "is_test": is_test, "domains": ["x", "y"] * 3}.items():
        np.save(tmp_path / f"{name}.npy", values)
    dataset = load("arrays", path=tmp_path, title="mine")
    np.testing.assert_array_equal(dataset.inputs, IMAGES[..., None])
    mapped = dataset.inputs
    while mapped.base is not None and not isinstance(mapped, np.memmap):
        mapped = mapped.base
    assert isinstance(mapped, np.memmap)
    assert dataset.is_test.tolist() == is_test.tolist() and dataset.domain_names == ("x", "y")


def test_a_directory_without_labels(tmp_path):
    np.save(tmp_path / "images.npy", IMAGES)
    with pytest.raises(InputError, match="has no 'labels'; it has images"):
        load("arrays", path=tmp_path)


def test_a_directory_is_a_domain_a_file(tmp_path):
    save(tmp_path / "b.npz"), save(tmp_path / "a.npz", images=IMAGES[:2], labels=LABELS[:2])
    dataset = load("arrays", path=tmp_path, title="both")
    assert (dataset.name, dataset.domain_names) == ("both", ("a", "b"))
    assert dataset.domains.tolist() == [0] * 2 + [1] * 6
    assert dataset.num_classes == 3


@pytest.mark.parametrize(
    ("contents", "message"),
    [
        ({"class_names": ["a", "b", "d"]}, "class_names differs.*a.npz.*b.npz"),
        ({"images": IMAGES[:, :3]}, r"the shape of an example differs: \(4, 4\).*\(3, 4\)"),
        ({"images": IMAGES.astype(np.float32)}, "the type of an example differs: uint8"),
    ],
)
def test_domains_must_agree(tmp_path, contents, message):
    names = {"class_names": ["a", "b", "c"]}
    save(tmp_path / "a.npz", **names), save(tmp_path / "b.npz", **(names | contents))
    with pytest.raises(InputError, match=message):
        load("arrays", path=tmp_path)


def test_a_missing_key_is_named(tmp_path):
    np.savez(tmp_path / "x.npz", images=IMAGES)
    with pytest.raises(InputError, match=r"x\.npz has no 'labels'; it has images"):
        load("arrays", path=tmp_path / "x.npz")


def test_pickled_objects_are_refused(tmp_path):
    with pytest.raises(InputError, match=r"cannot read .*x\.npz.*pickle"):
        load("arrays", path=save(tmp_path / "x.npz", labels=np.array([{}] * 6, object)))


@pytest.mark.parametrize("keep", [0, 10, 600])
def test_a_file_cut_short_is_named(tmp_path, keep):
    path = save(tmp_path / "x.npz")
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(InputError, match=r"x\.npz is not a whole \.npz"):
        load("arrays", path=path)


def test_damage_inside_a_file_is_named(tmp_path):
    path = save(tmp_path / "x.npz")
    data = bytearray(path.read_bytes())
    data[200] ^= 255
    path.write_bytes(bytes(data))
    with pytest.raises(InputError, match=r"cannot read .*x\.npz: Bad CRC"):
        load("arrays", path=path)


def test_a_missing_file_names_its_neighbour(tmp_path):
    save(tmp_path / "mine.npz")
    with pytest.raises(InputError, match=r"does not exist\..*Did you mean .*mine\.npz\?"):
        load("arrays", path=tmp_path / "mime.npz")


def test_a_directory_without_arrays_says_what_was_looked_for(tmp_path):
    with pytest.raises(InputError, match=r"Looked for: a \.npz file.*train-images-idx3-ubyte.*data_batch_1"):
        load("arrays", path=tmp_path)


def test_fashion_mnist():
    dataset = load("arrays", path=shared_path("data/fashion_mnist/fashion_mnist.npz"))
    assert dataset.inputs.shape == (70_000, 28, 28, 1)
    assert dataset.is_test.sum() == 10_000
    assert (np.bincount(dataset.labels[~dataset.is_test]) == 6000).all()
    assert dataset.class_names[9] == "Ankle boot"


def test_pacs():
    dataset = load("arrays", path=shared_path("data/pacs"))
    assert dataset.inputs.shape == (9991, 64, 64, 3)
    assert dataset.domain_names == ("art_painting", "cartoon", "photo", "sketch")
    assert np.bincount(dataset.domains).tolist() == [2048, 2344, 1670, 3929]
    assert np.bincount(dataset.labels[dataset.domains == 3]).tolist() == [772, 740, 753, 608, 816, 80, 160]

"""NumPy's .npz files: one file, or one per domain."""

import numpy as np
import pytest

from fedjax_het.data import load
from tests.data.sources.image_files import litter, refuse
from tests.data.sources.image_files import save as save_image
from tests.shared import read_jpegpack, shared_path

IMAGES = np.arange(6 * 4 * 4, dtype=np.uint8).reshape(6, 4, 4)
LABELS = np.array([0, 1, 2, 0, 1, 2])


def save(path, **contents):
    np.savez(path, **({"images": IMAGES, "labels": LABELS} | contents))
    return path


def test_images_and_labels_are_read(tmp_path):
    dataset = load("arrays", path=save(tmp_path / "mine.npz", class_names=["a", "b", "c"]))
    assert (dataset.name, dataset.class_names) == ("mine", ("a", "b", "c"))
    np.testing.assert_array_equal(dataset.inputs[..., 0], IMAGES)


@pytest.mark.parametrize(
    ("contents", "names"),
    [
        ({"domains": np.array(["y", "x"] * 3)}, ("x", "y")),
        ({"domains": [1, 0] * 3, "domain_names": ["x", "y"]}, ("x", "y")),
        ({"domains": [1, 0] * 3}, ("domain_0", "domain_1")),
    ],
)
def test_domains_are_given_by_name_or_by_number(tmp_path, contents, names):
    dataset = load("arrays", path=save(tmp_path / "mine.npz", **contents))
    assert dataset.domain_names == names
    assert dataset.domains.tolist() == [1, 0] * 3


def test_each_file_of_a_directory_is_a_domain(tmp_path):
    save(tmp_path / "b.npz"), save(tmp_path / "a.npz", images=IMAGES[:2], labels=LABELS[:2])
    litter(tmp_path)
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
    refuse(message, "arrays", tmp_path)


def test_pickled_objects_are_refused(tmp_path):
    refuse(r"cannot read .*x\.npz.*pickle", "arrays", save(tmp_path / "x.npz", labels=np.array([{}] * 6, object)))


@pytest.mark.parametrize("keep", [0, 10, 600])
def test_a_file_cut_short_is_named(tmp_path, keep):
    path = save(tmp_path / "x.npz")
    path.write_bytes(path.read_bytes()[:keep])
    refuse(r"x\.npz is not a whole \.npz", "arrays", path)


def test_damage_inside_a_file_is_named(tmp_path):
    path = save(tmp_path / "x.npz")
    data = bytearray(path.read_bytes())
    data[200] ^= 255
    path.write_bytes(bytes(data))
    refuse(r"cannot read .*x\.npz: Bad CRC", "arrays", path)


def test_the_error_for_a_missing_file_names_a_similar_one(tmp_path):
    save(tmp_path / "mine.npz")
    refuse(r"does not exist\..*Did you mean .*mine\.npz\?", "arrays", tmp_path / "mime.npz")


def test_the_error_for_a_directory_without_arrays_lists_the_forms(tmp_path):
    refuse(r"Looked for: a \.npz file.*train-images-idx3-ubyte.*data_batch_1", "arrays", tmp_path)


@pytest.mark.slow
def test_pacs_is_read_from_a_file_per_domain():
    dataset = load("arrays", path=shared_path("data/pacs"))
    assert dataset.inputs.shape == (9991, 64, 64, 3)
    assert dataset.domain_names == ("art_painting", "cartoon", "photo", "sketch")
    assert np.bincount(dataset.domains).tolist() == [2048, 2344, 1670, 3929]
    assert np.bincount(dataset.labels[dataset.domains == 3]).tolist() == [772, 740, 753, 608, 816, 80, 160]


def test_parts_named_like_splits_are_splits(tmp_path):
    np.savez(
        tmp_path / "x.npz",
        test_images=IMAGES[:1],
        test_labels=LABELS[:1],
        val_images=IMAGES[1:3],
        val_labels=LABELS[1:3],
        train_images=IMAGES[3:],
        train_labels=LABELS[3:],
    )
    dataset = load("arrays", path=tmp_path / "x.npz")
    np.testing.assert_array_equal(dataset.inputs[..., 0], IMAGES[[3, 4, 5, 1, 2, 0]])
    assert dataset.is_valid.tolist() == [False] * 3 + [True] * 2 + [False]
    assert dataset.is_test.tolist() == [False] * 5 + [True]


@pytest.mark.parametrize(
    "keys",
    [
        ("x_train", "y_train", "x_test", "y_test"),
        ("X_train", "y_train", "X_test", "y_test"),
        ("train_data", "train_targets", "test_data", "test_targets"),
        ("images_train", "labels_train", "images_test", "labels_test"),
    ],
)
def test_parts_are_read_under_the_names_that_others_save_them_by(tmp_path, keys):
    values = (IMAGES[:4], LABELS[:4, None], IMAGES[4:], LABELS[4:, None])
    np.savez(tmp_path / "x.npz", **dict(zip(keys, values, strict=True)), train_client=["b", "a", "a", "b"])
    dataset = load("arrays", path=tmp_path / "x.npz")
    np.testing.assert_array_equal(dataset.inputs[..., 0], IMAGES)
    assert (dataset.labels.tolist(), dataset.is_test.tolist()) == (LABELS.tolist(), [False] * 4 + [True] * 2)
    assert [dataset.domain_names[i] for i in dataset.domains] == ["b", "a", "a", "b", "all", "all"]


@pytest.mark.parametrize("keys", [("X", "y"), ("data", "target"), ("data", "targets"), ("x", "label")])
def test_arrays_are_read_under_common_names_and_notes_say_which(tmp_path, keys):
    np.savez(tmp_path / "x.npz", **dict(zip(keys, (IMAGES, LABELS), strict=True)), client=["b", "a"] * 3, extra=[1])
    dataset = load("arrays", path=tmp_path / "x.npz")
    assert (dataset.labels.tolist(), dataset.domain_names) == (LABELS.tolist(), ("a", "b"))
    assert "not read: extra" in dataset.notes and f"{keys[0]} as images" in dataset.notes[0]


def test_other_parts_are_domains_with_their_masks_and_splits(tmp_path):
    masks = (IMAGES % 2).astype(np.uint8)
    np.savez(
        tmp_path / "x.npz",
        b_images=IMAGES[:2],
        b_masks=masks[:2],
        a_images=IMAGES[2:],
        a_masks=masks[2:],
        a_split=["train", "train", "validation", "test"],
        a_organ=["lung"] * 4,
    )
    dataset = load("arrays", path=tmp_path / "x.npz")
    assert dataset.domain_names == ("b", "a") and dataset.domains.tolist() == [0, 0, 1, 1, 1, 1]
    np.testing.assert_array_equal(dataset.labels, masks)
    assert dataset.is_valid.tolist() == [False] * 4 + [True, False]
    assert dataset.is_test.tolist() == [False] * 5 + [True]
    small = load("arrays", path=tmp_path / "x.npz", size=3, channels=3)
    assert (small.inputs.shape, small.labels.shape) == ((6, 3, 3, 3), (6, 3, 3))


def test_resized_masks_have_the_same_classes(tmp_path):
    np.savez(tmp_path / "x.npz", images=IMAGES, masks=IMAGES.astype(np.int64) % 2 * 9)
    for size in (3, 5, 9):
        assert set(np.unique(load("arrays", path=tmp_path / "x.npz", size=size).labels)) <= {0, 9}


@pytest.mark.parametrize(
    ("contents", "message"),
    [
        (
            {"train_images": IMAGES, "train_labels": LABELS, "art_images": IMAGES, "art_labels": LABELS},
            "Give one kind; it has",
        ),
        ({"images": IMAGES}, r"x\.npz has 'images' without labels; it has images"),
        ({"art_images": IMAGES}, "has 'art_images' without labels"),
        ({"images": IMAGES, "labels": LABELS, "split": ["left"] * 6}, "no split is called 'left'"),
        ({"images": IMAGES, "masks": IMAGES.astype(np.int64) + 200}, r"has masks int64 \(6, 4, 4\)"),
        ({"images": IMAGES, "masks": IMAGES[0]}, r"has masks uint8 \(4, 4\)"),
        (
            {"a_images": IMAGES, "a_masks": IMAGES, "b_images": IMAGES, "b_labels": LABELS},
            r"the shape of a label differs: \(4, 4\) in a_images, \(\) in b_images",
        ),
        ({"images": IMAGES, "masks": IMAGES[:, :3]}, r"labels of shape \(6, 3, 4\), not \(6, 4, 4\)"),
        ({"labels": LABELS}, "has no images; it has labels"),
        (
            {"images": IMAGES, "data": IMAGES, "y": LABELS},
            "'images' and 'data' may both be the images.*data, y",
        ),
        ({"x_test": IMAGES, "test_images": IMAGES}, "'x_test' and 'test_images' may both be the images of test"),
        ({"images": IMAGES, "y": LABELS, "x_test": IMAGES}, "splits beside domains or whole arrays"),
    ],
)
def test_invalid_parts_are_named_in_the_error(tmp_path, contents, message):
    np.savez(tmp_path / "x.npz", **contents)
    refuse(message, "arrays", tmp_path / "x.npz")


def test_a_file_with_domains_cannot_be_a_domain(tmp_path):
    save(tmp_path / "a.npz"), save(tmp_path / "b.npz", domains=np.array(["x", "y"] * 3))
    refuse(r"b\.npz holds the domains x, y. Load it alone", "arrays", tmp_path)


def test_size_and_channels_convert_domains_to_one_form(tmp_path):
    colour = np.stack([IMAGES] * 3, axis=-1)[:, :3]
    save(tmp_path / "a.npz"), save(tmp_path / "b.npz", images=colour)
    refuse(r"the shape of an example differs.*give size and channels", "arrays", tmp_path)
    dataset = load("arrays", path=tmp_path, size=4, channels=3)
    assert dataset.inputs.shape == (12, 4, 4, 3)
    np.testing.assert_array_equal(dataset.inputs[:6], np.stack([IMAGES] * 3, axis=-1))


@pytest.mark.parametrize("images", [IMAGES.astype(np.float32), np.zeros((6, 4, 4, 2), np.uint8)])
def test_arrays_that_cannot_be_converted_are_refused(tmp_path, images):
    path = save(tmp_path / "x.npz", images=images)
    refuse(rf"size and channels are for uint8 images .* not for {images.dtype} \(6, 4, 4", "arrays", path, size=3)


def test_real_chest_x_rays_of_four_sources_are_the_same_from_arrays_and_files(tmp_path):
    cxr = read_jpegpack("data/cxr/cxr_jpegpack.npz")
    sources, names = ("ieee8023", "figure1", "actualmed", "kermany"), cxr["class_names"].tolist()
    np.savez(tmp_path / "cxr.npz", **cxr)
    dataset = load("arrays", path=tmp_path / "cxr.npz")
    assert dataset.domain_names == sources and dataset.class_names == ("normal", "pneumonia", "covid19")
    counts = [np.bincount(dataset.labels[dataset.domains == i], minlength=3).tolist() for i in range(4)]
    assert counts == [[8, 80, 395], [3, 2, 35], [18, 0, 26], [400, 400, 0]]
    for source in sources:
        for i in range(0, len(cxr[f"{source}_labels"]), 20):
            label = names[cxr[f"{source}_labels"][i]]
            save_image(tmp_path / "files" / source / label / f"{i:04d}.png", cxr[f"{source}_images"][i])
    files = load("folders", path=tmp_path / "files")
    assert files.domain_names == tuple(sorted(sources)) and files.inputs.shape == (70, 96, 96, 1)
    kermany = files.inputs[(files.domains == 3) & (files.labels == files.class_names.index("normal"))]
    is_normal = cxr["kermany_labels"][::20] == 0
    np.testing.assert_array_equal(kermany[..., 0], cxr["kermany_images"][::20][is_normal])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"images": np.zeros((6, 0, 4), np.uint8)}, r"'images' has the shape \(6, 0, 4\)"),
        ({"images": np.zeros((0, 4, 4), np.uint8), "labels": LABELS[:0]}, r"'images' has the shape \(0, 4, 4\)"),
        ({"images": np.uint8(3)}, r"'images' has the shape \(\)"),
        ({"labels": np.int64(1)}, r"6 inputs but labels of shape \(\)"),
        ({"split": np.array([["train", "test"]] * 6)}, r"'split' is <U5 of shape \(6, 2\). Give one axis of text"),
        ({"split": np.array("train")}, r"'split' is <U5 of shape \(\)"),
        ({"domains": np.array([b"a", b"b"] * 3)}, r"'domains' is \|S1 of shape \(6,\). Give one axis of text"),
        ({"domains": np.array(["a", "b"])}, r"6 inputs but domains of shape \(2,\)"),
        ({"domains": [0, 1] * 3, "domain_names": np.array([["a", "b"]])}, "'domain_names' is <U1 of shape"),
        ({"class_names": np.array("abc")}, r"'class_names' is <U3 of shape \(\)"),
        ({"class_names": ["a", "b", "a"]}, "the class 'a' is named twice"),
    ],
)
@pytest.mark.parametrize("size", [None, 3])
def test_arrays_of_impossible_shapes_are_named_in_the_error(tmp_path, changes, message, size):
    refuse(message, "arrays", save(tmp_path / "x.npz", **changes), size=size)

"""Multi-site prostate MRI in NIfTI volumes."""

import gzip
import sys

import numpy as np
import pytest

from fedjax_het.data import by_domain, federate, load
from tests.data.sources.image_files import litter, refuse

nibabel = pytest.importorskip("nibabel")

RNG = np.random.default_rng(0)
SHAPE = (6, 5, 7)  # slices, rows, columns


def write(path, array, dtype=np.int16):
    """[slice, row, column], stored as NIfTI has it: [column, row, slice]."""
    path.parent.mkdir(parents=True, exist_ok=True)
    nibabel.save(nibabel.Nifti1Image(array.transpose().astype(dtype), np.eye(4)), path)


def write_case(site, number, volume, segmentation, suffix="segmentation", ending="nii.gz", dtype=np.int16):
    write(site / f"Case{number:02d}.{ending}", volume, dtype)
    write(site / f"Case{number:02d}_{suffix}.{ending}", segmentation, dtype)


def case(num_slices=SHAPE[0], marked=(0, 1, 3, 4)):
    """(a volume, its segmentation with the prostate in these slices)."""
    volume = RNG.integers(-50, 3000, (num_slices, *SHAPE[1:]))
    segmentation = np.zeros(volume.shape, int)
    for i in marked:
        segmentation[i, 1:3, 2:5] = 1 + i % 2
    return volume, segmentation


@pytest.fixture
def cases(tmp_path):
    """Three sites; {(site, number): (volume, segmentation)}."""
    found = {}
    for site, number, suffix in (
        ("BIDMC", 0, "Segmentation"),
        ("BIDMC", 1, "segmentation"),
        ("UCL", 0, "Segmentation"),
    ):
        found[site, number] = case()
        write_case(tmp_path / site, number, *found[site, number], suffix)
    found["HK", 0] = case(num_slices=8, marked=(2, 7))
    write_case(tmp_path / "HK", 0, *found["HK", 0], "Segmentation", "nii", np.float32)
    litter(tmp_path), litter(tmp_path / "BIDMC")
    return found


def expected(volume, segmentation):
    """The steps one after the other, slice by slice."""
    high, low = np.quantile(volume, 0.99), volume.min()
    bytes = np.floor((np.where(volume > high, high, volume) - low) / (high - low) * 255).astype(np.uint8)
    kept = [i for i in range(1, len(volume) - 1) if segmentation[i].any()]
    return [np.stack([bytes[i - 1], bytes[i], bytes[i + 1]], axis=-1) for i in kept], [
        segmentation[i] > 0 for i in kept
    ]


def test_examples_are_slices_with_their_neighbors(cases, tmp_path):
    dataset = load("prostate", path=tmp_path)
    assert dataset.domain_names == ("BIDMC", "HK", "UCL")
    assert dataset.domains.tolist() == [0] * 6 + [1] + [2] * 3
    order = [("BIDMC", 0), ("BIDMC", 1), ("HK", 0), ("UCL", 0)]
    made = [expected(*cases[key]) for key in order]
    np.testing.assert_array_equal(dataset.inputs, np.concatenate([case[0] for case in made]))
    np.testing.assert_array_equal(dataset.labels, np.concatenate([case[1] for case in made]))
    assert (dataset.class_names, dataset.labels.dtype) == (("background", "prostate"), np.uint8)
    assert isinstance(dataset.inputs, np.memmap)
    assert "no folder for I2CVB, ISBI, ISBI_1.5" in dataset.notes


def test_size_resizes_slices_and_masks(cases, tmp_path):
    dataset = load("prostate", path=tmp_path, size=4)
    assert (dataset.inputs.shape, dataset.labels.shape) == ((10, 4, 4, 3), (10, 4, 4))
    assert set(np.unique(dataset.labels)) == {0, 1}


def write_placed(path, array, affine, code=1):
    """Write [column, row, slice] with an affine and what it refers to (0: nothing)."""
    path.parent.mkdir(exist_ok=True)
    image = nibabel.Nifti1Image(array.astype(np.uint8), affine)
    image.set_sform(affine, code), image.set_qform(affine, code)
    nibabel.save(image, path)


@pytest.mark.parametrize(("order", "code"), [("LPS", 1), ("IRP", 1), ("RAS", 0)])
def test_a_segmentation_is_brought_to_the_order_of_its_volume(tmp_path, order, code):
    volume, segmentation = (np.asarray(array.transpose(), np.uint8) for array in case(marked=(1, 2, 3)))
    affine = np.array([[0.6, 0, 0, -4], [0, 0.6, 0, 3], [0, 0, 3.6, 9], [0, 0, 0, 1]])
    axes = nibabel.orientations.axcodes2ornt(order)
    turned = nibabel.Nifti1Image(segmentation, affine).as_reoriented(axes)
    assert (turned.shape != segmentation.shape) == (order == "IRP")
    other = np.eye(4) if code == 0 else turned.affine  # a header without a place is not compared
    for site in ("a", "b"):
        write_placed(tmp_path / site / "1.nii", volume, affine)
    write_placed(tmp_path / "a" / "1_segmentation.nii", segmentation, affine)
    write_placed(tmp_path / "b" / "1_segmentation.nii", np.asarray(turned.dataobj), other, code)
    labels, domains = (getattr(load("prostate", path=tmp_path), name) for name in ("labels", "domains"))
    np.testing.assert_array_equal(labels[domains == 1], labels[domains == 0])


@pytest.mark.parametrize("site", ["BIDMC", "UCL"])
def test_slices_are_split_64_16_20(tmp_path, site):
    sizes = {"BIDMC": (261, 167, 41, 53), "UCL": (175, 112, 28, 35)}[site]  # as HarmoFL reports them
    write_case(tmp_path / site, 0, *case(num_slices=sizes[0] + 2, marked=tuple(range(1, 1 + sizes[0]))))
    dataset, again = load("prostate", path=tmp_path), load("prostate", path=tmp_path)
    assert tuple(split.sum() for split in dataset.splits.values()) == sizes[1:]
    np.testing.assert_array_equal(dataset.is_test, again.is_test)
    assert (dataset.is_test != load("prostate", path=tmp_path, split_seed=1).is_test).any()


def test_a_site_s_split_does_not_depend_on_the_others(cases, tmp_path):
    whole = load("prostate", path=tmp_path)
    (tmp_path / "BIDMC").rename(tmp_path.parent / f"{tmp_path.name}_elsewhere")
    rest = load("prostate", path=tmp_path)
    np.testing.assert_array_equal(rest.is_test, whole.is_test[6:])


def test_split_by_case_keeps_a_patient_together(tmp_path):
    for i in range(5):
        write_case(tmp_path / "HK", i, *case(marked=(1, 2, 3)))
    dataset = load("prostate", path=tmp_path, split_by="case")
    for split, num in zip(dataset.splits.values(), (3, 1, 1), strict=True):
        assert sorted(split.reshape(5, 3).sum(axis=1)) == [0] * (5 - num) + [3] * num
    refuse(r"split_by: unknown option 'patient'\. Known: case, slice\.", "prostate", tmp_path, split_by="patient")


def test_each_site_becomes_a_client_cut_to_the_smallest(cases, tmp_path):
    options = {"unseen_domains": "HK", "local_test": True, "equal_train": True}
    federation = federate(load("prostate", path=tmp_path), by_domain(), 2, **options)
    assert federation.data.train.count.tolist() == [1, 1]  # 3 and 1 of 6 and 3 slices
    assert federation.data.test.count.tolist() == [2, 1]


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("Case01_segmentation", None, r"Case01\.nii\.gz has no Case01_Segmentation"),
        ("Case01", None, r"Case01_segmentation\.nii\.gz has no Case01\.nii\.gz"),
        ("Case01_segmentation", np.ones((6, 5, 6)), r"Case01\.nii\.gz is \(7, 5, 6\) and .* is \(6, 5, 6\)"),
        ("Case01_segmentation", np.zeros(SHAPE), "marks nothing between"),
        ("Case01_segmentation", np.full(SHAPE, 0.3), r"Case01_segmentation\.nii\.gz holds values between whole"),
        ("Case01", np.full(SHAPE, 3), r"Case01\.nii\.gz is 3\.0 nearly everywhere"),
        ("Case01", np.full(SHAPE, np.nan), "holds NaN or infinity"),
        ("Case01", np.zeros((2, *SHAPE)), "has 4 axes"),
        ("Case01", b"hello", r"cannot read .*Case01\.nii\.gz"),
        ("Case01", gzip.compress(b"hello", mtime=0), r"cannot read .*Case01\.nii\.gz"),
        ("Case01", lambda data: data[:300], r"cannot read .*Case01\.nii\.gz"),
    ],
)
def test_invalid_volumes_are_named(cases, tmp_path, file, content, message):
    path = tmp_path / "BIDMC" / f"{file}.nii.gz"
    if isinstance(content, np.ndarray):
        write(path, content, np.float32)
    elif content is None:
        path.unlink()
    else:
        path.write_bytes(content if isinstance(content, bytes) else content(path.read_bytes()))
    refuse(message, "prostate", tmp_path)


def test_a_segmentation_in_another_place_is_refused(cases, tmp_path):
    write_placed(tmp_path / "BIDMC" / "Case01_segmentation.nii.gz", np.ones(SHAPE[::-1]), np.diag([2, 1, 1, 1]))
    refuse(r"Case01\.nii\.gz and .*Case01_segmentation\.nii\.gz are in different places", "prostate", tmp_path)


def test_a_case_of_another_shape_is_refused_and_size_converts_it(cases, tmp_path):
    write_case(tmp_path / "BIDMC", 1, *[np.arange(6 * 8 * 9).reshape(6, 8, 9)] * 2)
    refuse(r"Case00\.nii\.gz is 7 x 5 and .*Case01\.nii\.gz is 9 x 8 pixels. Give `size`", "prostate", tmp_path)
    assert load("prostate", path=tmp_path, size=4).inputs.shape[1:] == (4, 4, 3)


def test_a_case_of_two_slices_is_named(tmp_path):
    write_case(tmp_path / "HK", 0, *[np.arange(2 * 5 * 7).reshape(2, 5, 7)] * 2)
    refuse("has 2 slices, but each example takes three", "prostate", tmp_path)


def test_without_nibabel_the_extra_is_named(cases, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "nibabel", None)
    refuse(r"fedjax-het\[medical\]", "prostate", tmp_path)

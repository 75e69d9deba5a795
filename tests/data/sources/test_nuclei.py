"""Nuclei: images and masks in the forms in which sites publish them."""

import numpy as np
import pytest

from fedjax_het.data import by_domain, federate, load
from fedjax_het.data.sources._nuclei import fill_polygons
from tests.data.sources.image_files import draw, litter, refuse, save
from tests.shared import read_jpegpack

RNG = np.random.default_rng(0)
IMAGE = RNG.integers(0, 256, (9, 12, 3)).astype(np.uint8)
MASK = np.zeros((9, 12), np.uint8)
MASK[2:5, 3:8] = 1


def annotation(*polygons):
    regions = "".join(
        "<Region><Vertices>" + "".join(f'<Vertex X="{x}" Y="{y}" Z="0"/>' for x, y in polygon) + "</Vertices></Region>"
        for polygon in polygons
    )
    return f"<Annotations><Annotation><Regions>{regions}</Regions></Annotation></Annotations>"


SQUARE = annotation([(3, 2), (7, 2), (7, 4), (3, 4)])


@pytest.fixture
def root(tmp_path):
    """One site in each form."""
    save(tmp_path / "emory" / "images" / "1.png", IMAGE), save(tmp_path / "emory" / "masks" / "1.tif", MASK * 255)
    save(tmp_path / "monuseg" / "Tissue Images" / "a.tif", IMAGE)
    (tmp_path / "monuseg" / "Annotations").mkdir()
    (tmp_path / "monuseg" / "Annotations" / "a.xml").write_text(SQUARE)
    save(tmp_path / "monusac" / "TCGA-1" / "TCGA-1_1.tif", IMAGE)
    (tmp_path / "monusac" / "TCGA-1" / "TCGA-1_1.xml").write_text(SQUARE)
    (tmp_path / "monusac" / "TCGA-1" / "TCGA-1_1.svs").write_text("a scan")
    save(tmp_path / "tnbc" / "Slide_01" / "01_1.png", IMAGE)
    save(tmp_path / "tnbc" / "GT_01" / "01_1.png", np.repeat(MASK[..., None] * 200, 3, axis=2))
    for folder in (tmp_path, tmp_path / "emory" / "images", tmp_path / "emory" / "masks", tmp_path / "monusac"):
        litter(folder)
    return tmp_path


def test_every_form_gives_the_same_image_and_mask(root):
    dataset = load("nuclei", path=root)
    assert dataset.domain_names == ("emory", "monusac", "monuseg", "tnbc")
    assert (dataset.class_names, dataset.is_segmentation) == (("background", "nucleus"), True)
    np.testing.assert_array_equal(dataset.inputs, [IMAGE] * 4)
    np.testing.assert_array_equal(dataset.labels, [MASK] * 4)
    assert isinstance(dataset.labels, np.memmap) and dataset.labels.dtype == np.uint8
    assert dataset.notes == ("skipped by suffix: 1 .svs",)


def test_each_site_becomes_a_client(root):
    for i in range(2, 5):
        for site, image, mask in (("emory", "images", "masks"), ("tnbc", "Slide_01", "GT_01")):
            save(root / site / image / f"{i}.png", IMAGE), save(root / site / mask / f"{i}.png", MASK)
    federation = federate(
        load("nuclei", path=root), by_domain(), 2, unseen_domains=["monusac", "monuseg"], test_fraction=0
    )
    assert federation.client_names == ("emory", "tnbc")
    assert (federation.data.train.count + federation.data.test.count).tolist() == [4, 4]


def test_size_keeps_masks_to_0_and_1(root):
    dataset = load("nuclei", path=root, size=6)
    assert (dataset.inputs.shape, dataset.labels.shape) == ((4, 6, 6, 3), (4, 6, 6))
    assert set(np.unique(dataset.labels)) == {0, 1}


def test_folders_of_splits_become_the_published_split(tmp_path):
    for split in ("train", "test"):
        save(tmp_path / "a" / split / "images" / "1.png", IMAGE), save(tmp_path / "a" / split / "masks" / "1.png", MASK)
    assert load("nuclei", path=tmp_path).is_test.tolist() == [True, False]


def test_an_annotation_beside_a_mask_is_not_needed(root):
    (root / "emory" / "masks" / "1.xml").write_text("no XML")
    assert len(load("nuclei", path=root).labels) == 4


@pytest.mark.parametrize("suffix", ["jpg", "webp"])
def test_compressed_masks_are_cut_at_128_with_a_note(tmp_path, suffix):
    y, x = np.mgrid[:64, :64]
    mask = ((x - 30) ** 2 + (y - 25) ** 2 < 15**2).astype(np.uint8)
    save(tmp_path / "a" / "images" / "1.png", mask), save(tmp_path / "a" / "masks" / f"1.{suffix}", mask * 255)
    dataset = load("nuclei", path=tmp_path)
    np.testing.assert_array_equal(dataset.labels[0], mask)
    assert dataset.notes == ("1 masks are JPEG or WebP files: pixels of 128 or more are foreground",)


@pytest.mark.parametrize("value", [1, 100, 150])
def test_compressed_masks_that_are_not_black_and_white_are_refused(tmp_path, value):
    mask = np.kron(MASK, np.full((8, 8), value, np.uint8))
    save(tmp_path / "a" / "images" / "1.png", mask), save(tmp_path / "a" / "masks" / "1.jpg", mask)
    refuse(r"1\.jpg is compressed and not black and white.*as PNG", "nuclei", tmp_path)


def test_polygons_are_filled(tmp_path):
    path = tmp_path / "a.xml"
    path.write_text(annotation([(0, 0), (1, 1)], [(-5, -5), (2, -5), (2, 1), (-5, 1)], [(8.2, 8), (30, 8), (30, 30)]))
    expected = np.zeros((9, 12), np.uint8)
    expected[:2, :3] = expected[8, 8:] = 1
    np.testing.assert_array_equal(fill_polygons(path, (9, 12)), expected)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (
            lambda root: (root / "emory/masks/1.tif").unlink(),
            r"images/1\.png has no mask: .*emory/masks holds no 1\.\*",
        ),
        (lambda root: draw(root / "emory/masks/2.png"), r"masks/2\.png is a mask without an image"),
        (lambda root: (root / "monuseg/Annotations/a.xml").unlink(), r"a\.tif has no mask"),
        (lambda root: (root / "monusac/TCGA-1/TCGA-1_1.xml").unlink(), r"TCGA-1_1\.xml is not beside it"),
        (lambda root: (root / "tnbc/GT_01").rename(root / "tnbc/GT_02"), r"01_1\.png has no mask: .*GT_01 holds no"),
        (lambda root: save(root / "emory/masks/1.tif", MASK[1:]), r"1\.tif is 12 x 8 and its image .* is 12 x 9"),
        (lambda root: draw(root / "tnbc/Slide_01/01_1.png", mode="I;16"), "more than 8 bits"),
        (lambda root: (root / "monuseg/Annotations/a.xml").write_text("<A>"), r"cannot read .*a\.xml"),
        (lambda root: (root / "monuseg/Annotations/a.xml").write_text("<A/>"), r"a\.xml has no Annotation/Regions"),
        (
            lambda root: (root / "monuseg/Annotations/a.xml").write_text("<A><Region><Vertex X='1'/></Region></A>"),
            r"cannot read .*a\.xml",
        ),
        (lambda root: (root / "monuseg/Tissue Images/a.tif").write_bytes(b"II*"), r"cannot read .*a\.tif"),
    ],
)
def test_invalid_pairs_are_named(root, spoil, message):
    spoil(root)
    refuse(message, "nuclei", root)


def test_real_tiles_of_three_sources_are_the_same_from_files_and_arrays(tmp_path):
    tiles = read_jpegpack("data/nuclei/nuclei_jpegpack.npz")
    sites = ("gbm40", "monusac2020", "monuseg2018")
    arrays = {f"{site}_{kind}": tiles[f"{site}_{kind}"][:3] for site in sites for kind in ("images", "masks")}
    np.savez(tmp_path / "nuclei.npz", **arrays, class_names=["background", "nucleus"])
    for site in sites:
        for i in range(3):
            save(tmp_path / "files" / site / "images" / f"{i}.png", arrays[f"{site}_images"][i])
            save(tmp_path / "files" / site / "masks" / f"{i}.png", arrays[f"{site}_masks"][i] * 255)
    from_files, from_arrays = load("nuclei", path=tmp_path / "files"), load("arrays", path=tmp_path / "nuclei.npz")
    assert from_files.domain_names == from_arrays.domain_names == sites
    for name in ("inputs", "labels", "domains"):
        np.testing.assert_array_equal(getattr(from_files, name), getattr(from_arrays, name))
    assert from_files.labels.shape == (9, 256, 256) and 0.05 < from_files.labels.mean() < 0.5

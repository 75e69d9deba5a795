"""Files without permission, pipes, arrays of impossible shapes, and names with control characters."""

import os
import warnings
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedjax_het.data import assemble, by_domain, federate, iid, load
from fedjax_het.errors import InputError
from tests.data.sources.image_files import draw, refuse

IMAGES = np.arange(6 * 4 * 4, dtype=np.uint8).reshape(6, 4, 4)
LABELS = np.array([0, 1, 2, 0, 1, 2])


@pytest.fixture
def root(tmp_path):
    for i, name in enumerate(("art/dog/1.png", "art/cat/1.png", "photo/dog/2.png", "photo/cat/1.png")):
        draw(tmp_path / "images" / name, value=10 * i)
    return tmp_path / "images"


@pytest.fixture
def cache(tmp_path):
    return str(tmp_path / "cache")


def deny_access(monkeypatch, folder, *functions):
    """As for a user without the right; root, who runs tests in containers, has every right."""
    for name in functions:
        real = getattr(os, name)

        def deny(path=".", *args, real=real, **kwargs):
            if Path(os.fsdecode(path)) == folder:
                raise PermissionError(13, "Permission denied", str(path))
            return real(path, *args, **kwargs)

        monkeypatch.setattr(os, name, deny)


# ---- what may not be read or written ---------------------------------------------------------------------------------
@pytest.mark.parametrize("folder", ["", "art", "photo/dog"])
def test_a_folder_without_permission_is_named(root, cache, monkeypatch, folder):
    deny_access(monkeypatch, root / folder, "listdir", "scandir")
    refuse(f"cannot read {root / folder}: Permission denied. Change its permissions", "folders", root, cache=cache)


def test_a_folder_of_arrays_without_permission_is_not_treated_as_empty(tmp_path, monkeypatch):
    np.savez(tmp_path / "x.npz", images=IMAGES, labels=LABELS)
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != tmp_path)
    refuse(f"cannot read {tmp_path}: Permission denied", "arrays", tmp_path)


def test_an_image_without_permission_is_not_called_damaged(root, cache, monkeypatch):
    real = Image.open

    def deny(file, *args):
        if str(file).endswith("photo/dog/2.png"):
            raise PermissionError(13, "Permission denied", str(file))
        return real(file, *args)

    monkeypatch.setattr(Image, "open", deny)
    refuse(r"photo/dog/2.png: Permission denied. Change its permissions", "folders", root, cache=cache)


@pytest.mark.parametrize("function", ["mkdir", "rename"])
def test_the_error_for_a_cache_that_cannot_be_written_names_the_option_cache(root, cache, monkeypatch, function):
    real = getattr(os, function)

    def deny(path, *args, **kwargs):
        if ".partial" in str(path):
            raise PermissionError(13, "Permission denied", str(path))
        return real(path, *args, **kwargs)

    monkeypatch.setattr(os, function, deny)
    refuse(r"cache: cannot write decoded data to .*Permission denied. .*another folder", "folders", root, cache=cache)


@pytest.mark.parametrize(
    ("source", "address"),
    [
        *(
            ("nuclei", "zenodo.org/record/1175282"),
            ("prostate", "liuquande.github.io/SAML"),
            ("pacs", "dali-dl.github.io"),
        ),
        *(("camelyon17", "wilds.stanford.edu"), ("svhn", "ufldl.stanford.edu"), ("tcga_brca", "owkin/FLamby")),
    ],
)
def test_the_error_for_missing_data_says_where_they_are_published(tmp_path, source, address):
    (tmp_path / "site").mkdir()
    refuse(address, source, tmp_path / "nowhere")
    if source != "svhn":
        refuse(address, source, tmp_path)


# ---- files that are no files, and images that cannot be decoded ------------------------------------------------------
def test_a_pipe_is_refused_without_waiting_for_its_writer(root, cache, tmp_path):
    os.mkfifo(root / "art" / "dog" / "2.png")
    refuse(r"art/dog/2.png: it is not a regular file but a pipe", "folders", root, cache=cache)
    (tmp_path / "arrays").mkdir()
    os.mkfifo(tmp_path / "arrays" / "a.npz")
    refuse(r"a.npz: it is not a regular file", "arrays", tmp_path / "arrays")


@pytest.mark.parametrize("limit", [20, 10])  # of 6 x 4 pixels: more than the limit, and more than twice the limit
def test_an_image_beyond_pillows_limit_is_an_error_and_not_a_warning(root, cache, monkeypatch, limit):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", limit)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)
        refuse(rf"1.png is too large \(.*; at most {limit} are decoded\)", "folders", root, cache=cache)


# ---- names and classes ----------------------------------------------------------------------------------------------
def test_data_of_one_class_are_refused():
    with pytest.raises(InputError, match=r"x: all labels are of one class, '0'. Give data of several"):
        federate(assemble("x", IMAGES, LABELS * 0), iid(), 2)


def test_control_characters_in_names_are_escaped():
    names = ["a\nb", "caf\udce9", "\x1b[31m", "$x_{"]
    dataset = assemble(
        "the\tdata", IMAGES, LABELS % 2, class_names=names[:2], domains=LABELS % 2, domain_names=names[2:]
    )
    assert dataset.name == r"the\tdata"
    assert dataset.class_names == (r"a\nb", r"caf\udce9") and dataset.domain_names == (r"\x1b[31m", "$x_{")
    assert federate(dataset, by_domain(), 2).client_names == (r"\x1b[31m", "$x_{")


def test_folder_names_that_are_not_utf_8_are_escaped(root, cache):
    os.rename(os.fsencode(root / "art"), os.fsencode(root) + b"/caf\xe9")
    dataset = load("folders", path=root, cache=cache)
    assert dataset.domain_names == (r"caf\udce9", "photo") and len(dataset.inputs) == 4

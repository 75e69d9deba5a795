"""Examples in numpy's own files: one .npz, a directory with one for each domain, or a directory of .npy files."""

import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedjax_het.data.dataset import Dataset, assemble
from fedjax_het.data.sources.reading import reading
from fedjax_het.errors import InputError


class _Contents(NamedTuple):
    inputs: np.ndarray
    labels: np.ndarray
    is_test: np.ndarray
    class_names: list[str] | None
    domains: np.ndarray | None
    domain_names: list[str]


def npz_file(path: Path, title: str | None = None) -> Dataset:
    """One file with `images` and `labels`, or with `train_images`, `train_labels`, `test_images`, `test_labels`.

    Optional in both: `class_names`. Optional with the former: `is_test` [n], `domains` [n] as names or `domains` [n] as
    integers into `domain_names`.
    Raises InputError for a missing key, arrays that cannot be, and a damaged file.
    """
    contents = _read(path)
    return assemble(title or path.stem, **contents._asdict())


def npz_directory(path: Path, title: str | None = None) -> Dataset:
    """A file for each domain, called after its file; each as `npz_file` reads them.

    Raises InputError where the files do not agree on class_names, or on the shape and type of an example.
    """
    files = sorted(path.glob("*.npz"))
    contents = [_read(file) for file in files]
    for file, each in zip(files, contents, strict=True):
        _check_agreement("class_names", files[0], contents[0].class_names, file, each.class_names)
        _check_agreement("the shape of an example", files[0], contents[0].inputs.shape[1:], file, each.inputs.shape[1:])
        _check_agreement("the type of an example", files[0], contents[0].inputs.dtype, file, each.inputs.dtype)
    return assemble(
        title or path.name,
        np.concatenate([each.inputs for each in contents]),
        np.concatenate([each.labels for each in contents]),
        class_names=contents[0].class_names,
        domains=np.repeat(np.arange(len(files)), [len(each.inputs) for each in contents]),
        domain_names=[file.stem for file in files],
        is_test=np.concatenate([each.is_test for each in contents]),
    )


def npy_directory(path: Path, title: str | None = None) -> Dataset:
    """images.npy, labels.npy, and what else `npz_file` reads, a file each. Images are mapped, not read: as uint8 or
    float32 they may be larger than memory.

    Raises InputError as `npz_file` does.
    """
    arrays = {}
    for file in sorted(path.glob("*.npy")):
        with reading(file):
            arrays[file.stem] = np.load(file, mmap_mode="r" if file.stem == "images" else None)
    return assemble(title or path.name, **_contents(path, arrays)._asdict())


def _read(path: Path) -> _Contents:
    if path.exists() and not zipfile.is_zipfile(path):
        raise InputError(f"{path} is not a whole .npz file. It is cut short or of another format; fetch it again.")
    with reading(path), np.load(path) as file:
        return _contents(path, file)


def _contents(path: Path, file: Mapping[str, np.ndarray]) -> _Contents:
    if "images" in file:
        inputs, labels = _array(path, file, "images"), _array(path, file, "labels")
        is_test = file["is_test"] if "is_test" in file else np.zeros(len(inputs), bool)
    else:
        train, test = _array(path, file, "train_images"), _array(path, file, "test_images")
        _check_agreement("the shape of an example", "train_images", train.shape[1:], "test_images", test.shape[1:])
        inputs = np.concatenate([train, test])
        labels = np.concatenate([_array(path, file, "train_labels"), _array(path, file, "test_labels")])
        is_test = np.arange(len(inputs)) >= len(train)
    class_names = file["class_names"].tolist() if "class_names" in file else None
    return _Contents(inputs, labels, is_test, class_names, *_domains(file))


def _array(path: Path, file: Mapping[str, np.ndarray], key: str) -> np.ndarray:
    if key not in file:
        raise InputError(
            f"{path} has no '{key}'; it has {', '.join(file)}. Give images and labels, or train_images, "
            "train_labels, test_images and test_labels."
        )
    return file[key]


def _domains(file: Mapping[str, np.ndarray]) -> tuple[np.ndarray | None, list[str]]:
    if "domains" not in file:
        return None, ["all"]
    domains = file["domains"]
    if domains.dtype.kind == "U":
        names, domains = np.unique(domains, return_inverse=True)
        return domains, names.tolist()
    if "domain_names" in file:
        return domains, file["domain_names"].tolist()
    return domains, [f"domain_{i}" for i in range(int(domains.max(initial=0)) + 1)]


def _check_agreement(what: str, first: object, first_value: object, second: object, second_value: object) -> None:
    if first_value != second_value:
        raise InputError(
            f"{what} differs: {first_value} in {first}, {second_value} in {second}. Bring them to one form, or load "
            "them apart."
        )

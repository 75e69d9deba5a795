"""NumPy's .npz files: one file, or a directory with a file per domain."""

import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.lib.npyio import NpzFile

from fedjax_het.data.dataset import Dataset, assemble
from fedjax_het.data.indexing import number_names
from fedjax_het.data.sources._growable_npy import check_header
from fedjax_het.data.sources._image_listing import SPLITS, list_entries
from fedjax_het.data.sources._images import conform_images, resize_mask
from fedjax_het.data.sources._io_errors import check_regular, report_read_errors, require_path
from fedjax_het.errors import InputError, nearest

_KEYS = "images with labels or masks; or for each part train_images, train_labels, ..."


class _Contents(NamedTuple):
    inputs: np.ndarray
    labels: np.ndarray
    splits: np.ndarray  # [n] "train", "valid", "test"
    domains: np.ndarray  # [n] int
    domain_names: list[str]
    class_names: list[str] | None


_FORMS: dict[str, Callable[[_Contents], object]] = {
    "the shape of an example": lambda contents: contents.inputs.shape[1:],
    "the type of an example": lambda contents: contents.inputs.dtype,
    "the shape of a label": lambda contents: contents.labels.shape[1:],
}


def read_npz_file(path: Path, title: str | None, size: int | None, channels: int | None) -> Dataset:
    """Read one file, with `images` and `labels` or `masks`, or with several parts of them, <part>_images and so on.

    The parts train, valid (val, ...) and test are splits; others are domains. Optional are `class_names`; `split` [n]
    (or <part>_split) with the names of splits; and beside `images`, `domains` [n] as names, or as integers into
    `domain_names`.
    """
    return _assemble(title or path.stem, _read(path, size, channels))


def read_npz_directory(path: Path, title: str | None, size: int | None, channels: int | None) -> Dataset:
    """Read a file per domain, which has the name of its file; the files agree on class names, shapes and types."""
    files = list_entries(path, ".npz")
    contents = [_read(file, size, channels) for file in files]
    for file, each in zip(files, contents, strict=True):
        if len(each.domain_names) > 1:
            raise InputError(f"{file} holds the domains {', '.join(each.domain_names)}. Load it alone.")
        _check_agreement("class_names", files[0], contents[0].class_names, file, each.class_names)
    named = [each._replace(domain_names=[file.stem]) for file, each in zip(files, contents, strict=True)]
    return _assemble(title or path.name, _concatenate(files, named))


def _assemble(name: str, contents: _Contents) -> Dataset:
    fields = contents._asdict()
    splits = fields.pop("splits")
    return assemble(name, **fields, is_valid=splits == "valid", is_test=splits == "test")


def _concatenate(origins: Sequence[object], parts: Sequence[_Contents]) -> _Contents:
    """Concatenate parts of one domain each; parts of the same domain name are of the same domain."""
    for what, form in _FORMS.items():
        for origin, part in zip(origins, parts, strict=True):
            _check_agreement(what, origins[0], form(parts[0]), origin, form(part))
    if len(parts) == 1:
        return parts[0]
    names = list(dict.fromkeys(part.domain_names[0] for part in parts))
    return _Contents(
        *(np.concatenate([getattr(part, field) for part in parts]) for field in ("inputs", "labels", "splits")),
        domains=np.repeat([names.index(part.domain_names[0]) for part in parts], [len(part.inputs) for part in parts]),
        domain_names=names,
        class_names=parts[0].class_names,
    )


def _check_agreement(what: str, first: object, first_value: object, second: object, second_value: object) -> None:
    if first_value != second_value:
        raise InputError(
            f"{what} differs: {first_value} in {first}, {second_value} in {second}. Bring them to one form (images: "
            "give size and channels), or load them separately."
        )


def _read(path: Path, size: int | None, channels: int | None) -> _Contents:
    check_regular(require_path(path))
    if not zipfile.is_zipfile(path):
        raise InputError(f"{path} is not a whole .npz file. It is cut short or of another format; download it again.")
    with report_read_errors(path), np.load(path) as file:
        class_names = _read_names(path, file, "class_names") if "class_names" in file else None
        if "images" in file:
            domains, domain_names = _read_domains(path, file)
            contents = _read_part(path, file, "", size, channels)._replace(class_names=class_names)
            return contents if domains is None else contents._replace(domains=domains, domain_names=domain_names)
        names = [key.removesuffix("_images") for key in file.files if key.endswith("_images")]
        if not names:
            raise InputError(f"{path} has no images; it has {', '.join(file.files)}. Give {_KEYS}")
        if len({name in SPLITS for name in names}) > 1:
            raise InputError(f"{path} has the parts {', '.join(names)}: splits and domains. Give one kind.")
        if names[0] in SPLITS:
            names = sorted(names, key=lambda name: ("train", "valid", "test").index(SPLITS[name]))
        parts = [_read_part(path, file, name, size, channels) for name in names]
        return _concatenate([f"{name}_images" for name in names], parts)._replace(class_names=class_names)


def _read_part(path: Path, file: NpzFile, name: str, size: int | None, channels: int | None) -> _Contents:
    """Read the part <name>_images ..., or without a name, images ...; its split or domain is its name."""
    prefix = f"{name}_" if name else ""
    images = _read_array(path, file, f"{prefix}images")
    if images.ndim < 2 or 0 in images.shape:
        raise InputError(
            f"{path}: '{prefix}images' has the shape {images.shape}. Give [n, ...], one or more, of one or more pixels."
        )
    inputs = conform_images(images, size, channels)
    if f"{prefix}masks" in file:
        labels = _convert_masks(path, _read_member(file, f"{prefix}masks"), size)
    else:
        labels = _read_array(path, file, f"{prefix}labels")
    splits = _read_names(path, file, f"{prefix}split") if f"{prefix}split" in file else ["train"] * len(inputs)
    for split in set(splits):
        if split not in SPLITS:
            raise InputError(f"{path}: no split is called '{split}'. {nearest(split, SPLITS)}")
    splits = np.full(len(inputs), SPLITS[name]) if name in SPLITS else np.array([SPLITS[x] for x in splits], "U5")
    domain = name if name and name not in SPLITS else "all"
    return _Contents(inputs, labels, splits, np.zeros(len(inputs), int), [domain], None)


def _convert_masks(path: Path, masks: np.ndarray, size: int | None) -> np.ndarray:
    if masks.dtype.kind not in "iub" or masks.ndim != 3 or masks.min(initial=0) < 0 or masks.max(initial=0) > 255:
        raise InputError(
            f"{path} has masks {masks.dtype} {masks.shape}. Give [n, height, width], the class of each pixel in 0..255."
        )
    return np.stack([resize_mask(mask, size) for mask in masks.astype(np.uint8)])


def _read_array(path: Path, file: NpzFile, key: str) -> np.ndarray:
    if key not in file:
        raise InputError(f"{path} has no '{key}'; it has {', '.join(file.files)}. Give {_KEYS}")
    return _read_member(file, key)


def _read_member(file: NpzFile, key: str) -> np.ndarray:
    """Read one array; raises ValueError where the file does not hold what its header announces."""
    name, archive = f"{key}.npy", file.zip
    if archive is not None and name in archive.namelist():
        with archive.open(name) as member:
            check_header(member, archive.getinfo(name).file_size, is_read=True)
    return file[key]


def _read_names(path: Path, file: NpzFile, key: str) -> list[str]:
    values = _read_member(file, key)
    if values.ndim != 1 or values.dtype.kind not in "Uiu":
        raise InputError(
            f"{path}: '{key}' is {values.dtype} of shape {values.shape}. Give one axis of text, np.array([...], str)."
        )
    return [str(each) for each in values.tolist()]


def _read_domains(path: Path, file: NpzFile) -> tuple[np.ndarray | None, list[str]]:
    if "domains" not in file:
        return None, ["all"]
    domains = _read_member(file, "domains")
    if domains.dtype.kind not in "iu":
        names, domains = np.unique(_read_names(path, file, "domains"), return_inverse=True)
        return domains, names.tolist()
    if "domain_names" in file:
        return domains, _read_names(path, file, "domain_names")
    return domains, number_names("domains", int(domains.max(initial=0)), len(domains), "domain_")

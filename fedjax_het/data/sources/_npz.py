"""NumPy's .npz files, one file or a directory with a file per domain, and arrays by name in Python."""

import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedjax_het.data.dataset import Dataset
from fedjax_het.data.sources._assembly import SPLITS, Part, assemble_parts, check_agreement
from fedjax_het.data.sources._image_listing import list_entries
from fedjax_het.data.sources._io_errors import report_read_errors
from fedjax_het.data.sources._npy import check_header
from fedjax_het.errors import InputError
from fedjax_het.labels import KindName

_ALIASES = {
    "images": ("images", "image", "x", "data", "inputs", "features"),
    "labels": ("labels", "label", "y", "targets", "target", "class"),
    "masks": ("masks", "mask"),
    "split": ("split", "splits", "subset"),
    "domains": ("domains", "domain", "clients", "client", "client_id", "sites", "site", "users", "user", "user_id"),
    "domain_names": ("domain_names", "client_names"),
    "class_names": ("class_names", "target_names"),
}
ROLES = {alias: role for role, aliases in _ALIASES.items() for alias in aliases}
"""The names of arrays and columns in files, in lower case -> their role."""
_KEYS = "images with labels or masks; or for each part train_images, train_labels or x_train, y_train, ..."


class _Contents(NamedTuple):
    parts: list[Part]
    fields: dict[str, Any]  # class_names, domain_names and notes, see `assemble`


def read_npz_file(
    path: Path, title: str | None, size: int | None, channels: int | None, kind: KindName | None = None
) -> Dataset:
    """Read a file with images and labels or masks, or with several parts of them, <part>_images and so on.

    The parts train, valid (val, ...) and test are splits, also as suffixes (x_train); others are domains. Optional:
    `class_names`; `split` [n] (or <part>_split) with split names; and `domains` [n] (or <split>_domains) as names, or
    as integer indices into `domain_names`. `ROLES` lists other names of these arrays.
    """
    parts, fields = _read(path)
    return assemble_parts(title or path.stem, parts, size, channels, kind=kind, **fields)


def read_npz_directory(
    path: Path, title: str | None, size: int | None, channels: int | None, kind: KindName | None = None
) -> Dataset:
    """Read a file per domain, named after the file; files must agree on class names, shapes and types."""
    files = list_entries(path, ".npz")
    parts, fields = [], []
    for file in files:
        contents = _read(file)
        fields.append(contents.fields)
        domains = {str(name) for part in contents.parts for name in np.unique(part.domains)}
        if len(domains) > 1:
            raise InputError(f"{file} holds the domains {', '.join(sorted(domains))}. Load it alone.")
        names = [entry.get("class_names") for entry in (fields[0], fields[-1])]
        check_agreement("class_names", files[0], names[0], file, names[1])
        parts += [part._replace(domains=file.stem, origin=file) for part in contents.parts]
    common = {
        "domain_names": [file.stem for file in files],
        "notes": list(dict.fromkeys(note for part_fields in fields for note in part_fields["notes"])),
    }
    return assemble_parts(title or path.name, parts, size, channels, kind=kind, **(fields[0] | common))


def assign_roles(origin: object, keys: Iterable[str]) -> dict[str, dict[str, str]]:
    """Assign roles to arrays or columns by name, using `ROLES`.

    Returns:
        {part: {role: key}}, where a part is a split or a domain, or "" for keys without a part.

    Raises:
        InputError: Two keys have the same role.
    """
    keys, parts = list(keys), {}
    for key in keys:
        (first, _, after), (before, _, last) = key.partition("_"), key.rpartition("_")
        if key.lower() in ROLES:
            part, role = "", ROLES[key.lower()]
        elif first.lower() in ROLES and after.lower() in SPLITS:
            part, role = after, ROLES[first.lower()]
        elif before and (last in _ALIASES or (before.lower() in SPLITS and last.lower() in ROLES)):
            part, role = before, ROLES[last.lower()]
        else:
            continue
        if (other := parts.setdefault(part, {}).setdefault(role, key)) != key:
            raise InputError(
                f"{origin}: '{other}' and '{key}' may both be the {role}{part and f' of {part}'}. Keep one of them; "
                f"found {', '.join(keys)}."
            )
    return parts


def _read(path: Path) -> _Contents:
    with report_read_errors(path):
        is_whole = zipfile.is_zipfile(path)
    if not is_whole:
        raise InputError(f"{path} is not a whole .npz file. It is cut short or of another format; download it again.")
    with report_read_errors(path), np.load(path) as file:
        return _read_contents(path, file)


def _read_contents(origin: object, file: Mapping[str, Any]) -> _Contents:
    parts = assign_roles(origin, file)
    whole, found = parts.get("", {}), ", ".join(file)
    names = [name for name, keys in parts.items() if "images" in keys]
    if not names:
        raise InputError(f"{origin} has no images; it has {found}. Give {_KEYS}")
    if len({(name == "") + 2 * (name.lower() in SPLITS) for name in names}) > 1:
        raise InputError(f"{origin} has splits beside domains or whole arrays. Give one kind; it has {found}.")
    if names[0].lower() in SPLITS:
        names = sorted(names, key=lambda name: ("train", "valid", "test").index(SPLITS[name.lower()]))
    fields: dict[str, Any] = {"domain_names": names} if names[0] and names[0].lower() not in SPLITS else {}
    named = [role for role in ("class_names", "domain_names") if role in whole]
    fields |= {role: _read_names(origin, file, whole[role]) for role in named}
    used = {key: role for name in ["", *names] for role, key in parts.get(name, {}).items()}
    renamed = [f"{key} as {role}" for key, role in used.items() if role[:-1] not in key]
    unread = [key for key in file if key not in used]
    notes = [f"read {', '.join(renamed)}"] * bool(renamed) + [f"not read: {', '.join(unread)}"] * bool(unread)
    return _Contents([_read_part(origin, file, name, parts[name]) for name in names], fields | {"notes": notes})


def _read_part(origin: object, file: Mapping[str, Any], name: str, keys: Mapping[str, str]) -> Part:
    """Read the arrays of a part, whose name is its split or domain."""
    images = _read_member(file, keys["images"])
    if images.ndim < 2 or 0 in images.shape:
        raise InputError(
            f"{origin}: '{keys['images']}' has the shape {images.shape}. Give [n, ...], one or more, of one or more "
            "pixels."
        )
    if not (key := keys.get("masks") or keys.get("labels")):
        raise InputError(f"{origin} has '{keys['images']}' without labels; it has {', '.join(file)}. Give {_KEYS}")
    labels = _read_member(file, key)
    if "masks" in keys or labels.ndim == 3:
        labels = _convert_masks(origin, labels)
    is_split = name.lower() in SPLITS
    splits = _read_names(origin, file, keys["split"]) if "split" in keys else name if is_split else "train"
    domains = name if name and not is_split else "all"
    if domains == "all" and "domains" in keys:
        domains = _read_member(file, keys["domains"])
        domains = domains if domains.dtype.kind in "iu" else _read_names(origin, file, keys["domains"])
    return Part(keys["images"], images, labels, splits, domains)


def _convert_masks(origin: object, masks: np.ndarray) -> np.ndarray:
    if masks.dtype.kind not in "iub" or masks.ndim != 3 or masks.min(initial=0) < 0 or masks.max(initial=0) > 255:
        raise InputError(
            f"{origin} has masks {masks.dtype} {masks.shape}. Give [n, height, width], each pixel's class in 0..255."
        )
    return masks.astype(np.uint8, copy=False)


def _read_member(file: Mapping[str, Any], key: str) -> np.ndarray:
    """Read an array; raises ValueError if the file does not match its header."""
    name, archive = f"{key}.npy", getattr(file, "zip", None)
    if archive is not None and name in archive.namelist():
        with archive.open(name) as member:
            check_header(member, archive.getinfo(name).file_size, is_read=True)
    return np.asanyarray(file[key])


def _read_names(origin: object, file: Mapping[str, Any], key: str) -> list[str]:
    values = _read_member(file, key)
    if values.ndim != 1 or values.dtype.kind not in "Uiu":
        raise InputError(
            f"{origin}: '{key}' is {values.dtype} of shape {values.shape}. Give one axis of text, np.array([...], str)."
        )
    return [str(value) for value in values.tolist()]

"""What a source knows before it decodes anything: which file is an example of what, from where, in which split."""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np

from fedjax_het.data.dataset import Dataset, assemble
from fedjax_het.data.sources._decode_cache import decode_once
from fedjax_het.data.sources._images import image_options, read_image
from fedjax_het.errors import InputError, nearest

SPLITS = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("valid", "val", "validation", "crossval"), "valid"),
    **dict.fromkeys(("test", "testing"), "test"),
}
"""What the folders and lists of data sets call the three splits -> what we call them."""


class ImageEntry(NamedTuple):
    """One image file."""

    path: str
    label: str  # the name of its class
    domain: str
    split: str = "train"  # or "valid", "test"


def image_dataset(
    name: str,
    entries: Sequence[ImageEntry],
    *,
    size: int | None,
    channels: int | None,
    cache: str | None,
    class_names: Sequence[str] | None = None,
    notes: Sequence[str] = (),
    read: Callable[[str, int | None, int | None], np.ndarray] = read_image,
) -> Dataset:
    """Decode the files of a listing; domains in alphabetical order, and classes where `class_names` gives no
    other.

    Raises InputError for an empty listing, for a file that is listed twice, and as `read_image` and `decoded` do.
    """
    if not entries:
        raise InputError(f"{name}: no images are listed. Look for lists and folders that are empty.")
    _check_once(entries)
    options = image_options(size, channels)
    files = [entry.path for entry in entries]
    arrays = decode_once(
        name,
        files,
        lambda path: {"inputs": read(path, size, channels)[None]},
        files=files,
        options=options,
        cache=cache,
    )
    if class_names is None:
        class_names = sorted({entry.label for entry in entries})
    return sort_by_domain(
        name,
        arrays["inputs"],
        positions_of([entry.label for entry in entries], class_names),
        class_names=class_names,
        domains=[entry.domain for entry in entries],
        splits=[entry.split for entry in entries],
        notes=notes,
    )


def _check_once(entries: Sequence[ImageEntry]) -> None:
    first: dict[str, ImageEntry] = {}
    for entry in entries:
        if (before := first.setdefault(entry.path, entry)) is not entry:
            raise InputError(
                f"{entry.path} is listed twice, for {before.domain} ({before.split}) and for {entry.domain} "
                f"({entry.split}). Leave it in one list."
            )


def sort_by_domain(
    name: str,
    inputs: np.ndarray,
    labels: np.ndarray,
    *,
    class_names: Sequence[str],
    domains: Sequence[str],
    splits: Sequence[str],
    notes: Sequence[str] = (),
) -> Dataset:
    """A Dataset whose domains and splits ("train", "valid", "test") are told by name, example by example."""
    domain_names = sort_naturally(set(domains))
    return assemble(
        name,
        inputs,
        labels,
        class_names=class_names,
        domains=positions_of(domains, domain_names),
        domain_names=domain_names,
        is_valid=[split == "valid" for split in splits],
        is_test=[split == "test" for split in splits],
        notes=notes,
    )


def sort_naturally(names: Iterable[str]) -> list[str]:
    """Sorted, numbers inside names as numbers: client_2 before client_10."""
    return sorted(
        names,
        key=lambda name: [
            (not part.isdigit(), int(part) if part.isdigit() else 0, part) for part in re.split(r"(\d+)", name)
        ],
    )


def positions_of(values: Sequence[str], names: Sequence[str]) -> np.ndarray:
    """[n] int32: where each value stands among the names."""
    index = {name: i for i, name in enumerate(names)}
    return np.array([index[value] for value in values], np.int32)


def check_shared_classes(name: str, entries: Iterable[ImageEntry], otherwise: str = "") -> None:
    """Raise InputError for a class that one domain alone has, as a misspelt folder would be.

    otherwise: what else the user may do about it, ", or ..."
    """
    counts = Counter((entry.domain, entry.label) for entry in entries)
    owners: dict[str, list[str]] = {}
    for domain, label in counts:
        owners.setdefault(label, []).append(domain)
    if len({domain for domain, _ in counts}) < 2:
        return
    for label, (domain, *others) in owners.items():
        if not others:
            shared = [each for each, found in owners.items() if len(found) > 1]
            raise InputError(
                f"{name}: class '{label}' exists in domain '{domain}' only (images: {counts[domain, label]}). Rename "
                f"or remove it{otherwise}. {nearest(label, shared)}"
            )


def note_size(entries: Sequence[object], num: int) -> list[str]:
    """A note where the data set has been published with another number of examples."""
    return [] if len(entries) == num else [f"{len(entries):,} of the {num:,} examples that were published"]

"""What a source knows before it decodes anything: which file is an example of what, from where, in which split."""

import csv
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedjax_het.data.dataset import Dataset, assemble
from fedjax_het.data.sources._decode_cache import decode_once
from fedjax_het.data.sources._images import decoding_options, read_image
from fedjax_het.data.sources._io_errors import report_read_errors
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
    _check_no_duplicates(entries)
    options = decoding_options(size, channels)
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
    return assemble_by_name(
        name,
        arrays["inputs"],
        encode_names([entry.label for entry in entries], class_names),
        class_names=class_names,
        domains=[entry.domain for entry in entries],
        splits=[entry.split for entry in entries],
        notes=notes,
    )


def _check_no_duplicates(entries: Sequence[ImageEntry]) -> None:
    first: dict[str, ImageEntry] = {}
    for entry in entries:
        if (before := first.setdefault(entry.path, entry)) is not entry:
            raise InputError(
                f"{entry.path} is listed twice, for {before.domain} ({before.split}) and for {entry.domain} "
                f"({entry.split}). Leave it in one list."
            )


def assemble_by_name(
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
        domains=encode_names(domains, domain_names),
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


def encode_names(values: Sequence[str], names: Sequence[str]) -> np.ndarray:
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


class ListedFile(NamedTuple):
    line: int  # from 1
    path: str  # as the list writes it: <domain>/<class>/<file>
    label: int


def read_split_list(listed: Path, root: Path) -> list[ListedFile]:
    """The rows of a list; file names may hold spaces, blank lines are passed over.

    Raises InputError for a line that cannot be read, and for one whose file is not below `root`.
    """
    with report_read_errors(listed):
        lines = listed.read_text().splitlines()
    rows = [_parse_line(listed, i, text) for i, text in enumerate(lines, start=1) if text.strip()]
    check_files_exist(listed, ((row.line, str(root / row.path)) for row in rows))
    return rows


def _parse_line(listed: Path, line: int, text: str) -> ListedFile:
    path, _, label = text.strip().rpartition(" ")
    if not path or not label.isdigit():
        raise InputError(f"{listed}, line {line}: '{text.strip()}' is not '<file> <label>'. Mend the line.")
    return ListedFile(line, path.strip(), int(label))


def read_csv(path: Path) -> Iterator[tuple[int, list[str]]]:
    """(line, cells) of every line that is not blank. Raises InputError for a file that is missing or no text."""
    with report_read_errors(path), path.open(newline="", encoding="utf-8-sig") as file:
        reader = csv.reader(file)
        yield from ((reader.line_num, [cell.strip() for cell in cells]) for cells in reader if any(cells))


def read_csv_columns(path: Path, columns: Sequence[str]) -> Iterator[tuple[int, list[str]]]:
    """(line, the cells of these columns) of a table with a header.

    Raises InputError for a column that is missing, and for a line that is cut short.
    """
    lines = read_csv(path)
    header = next(lines, (0, []))[1]
    for column in columns:
        if column not in header:
            raise InputError(f"{path} has no column '{column}'. {nearest(column, header)}")
    places = [header.index(column) for column in columns]
    for line, cells in lines:
        if len(cells) <= max(places):
            raise InputError(
                f"{path}, line {line}: {len(cells)} cells for {len(header)} columns. Fetch the file again."
            )
        yield line, [cells[place] for place in places]


def parse_count(path: Path, line: int, what: str, text: str) -> int:
    """A cell that holds a whole number of 0 or more, be it written 1 or 1.0."""
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if number < 0 or number != int(number):
        raise InputError(f"{path}, line {line}: {what} is '{text}', not a whole number from 0. Mend the line.")
    return int(number)


def check_files_exist(listed: Path, paths: Iterable[tuple[int, str]]) -> None:
    """(line, path) of every row of a list: raise InputError for the first whose file is not there.

    Folders are read once each, which is much quicker than asking for every file.
    """
    contents: dict[str, set[str]] = {}
    for line, path in paths:
        folder, file = os.path.split(path)
        if folder not in contents:
            contents[folder] = set(os.listdir(folder)) if os.path.isdir(folder) else set()
        if file not in contents[folder]:
            raise InputError(f"{listed}, line {line}: {path} is not there. Restore the file, or take out the line.")

"""Listings of image files with classes, domains and splits, and the resulting data sets."""

import csv
import os
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedjax_het._internal.regular_files import read_text
from fedjax_het.data.dataset import Dataset
from fedjax_het.data.sources._assembly import SPLITS, assemble_by_name
from fedjax_het.data.sources._decode_cache import decode_once
from fedjax_het.data.sources._images import IMAGE_SUFFIXES, decoding_options, read_image
from fedjax_het.data.sources._io_errors import report_read_errors
from fedjax_het.errors import InputError, nearest
from fedjax_het.labels import KindName

_LITTER = ("__macosx", "thumbs.db", "desktop.ini")  # system files besides hidden files


def list_entries(folder: Path, *suffixes: str) -> list[Path]:
    """The files and folders with these suffixes (in lower case), by name, without hidden and system files."""
    inside = folder.iterdir() if folder.is_dir() else []
    names = {path: path.name.lower() for path in inside}
    return sorted(
        path
        for path, name in names.items()
        if not name.startswith(".") and name not in _LITTER and name.endswith(suffixes or "")
    )


def list_subfolders(folder: Path) -> list[Path]:
    """The subfolders that `list_entries` lists."""
    return [path for path in list_entries(folder) if path.is_dir()]


def list_image_files(folder: Path) -> list[Path]:
    """The image files that `list_entries` lists."""
    return list_entries(folder, *IMAGE_SUFFIXES)


def find_splits(folder: Path, notes: list[str]) -> list[tuple[str, Path]]:
    """(split, subfolder) of subfolders that have the name of a split and contain folders; empty if there are none.

    Other subfolders are skipped, and listed in `notes`.
    """
    inside = list_subfolders(folder)
    named = [path for path in inside if path.name.lower() in SPLITS]
    splits = [path for path in named if list_subfolders(path)] or (named if named == inside else [])
    if splits and (others := [path.name for path in inside if path not in splits]):
        notes.append(f"skipped in {folder.name} beside {', '.join(x.name for x in splits)}: {', '.join(others)}")
    return [(SPLITS[path.name.lower()], path) for path in splits]


def count_suffixes(folders: Iterable[Path], read: Collection[str] = ()) -> str:
    """Count the files in folders by suffix, "3 .gif, 1 .txt", except suffixes that are read."""
    files = [path for folder in folders for path in list_entries(folder) if path.suffix.lower() not in read]
    counts = Counter(path.suffix.lower() or "without suffix" for path in files if path.is_file())
    return ", ".join(f"{count} {suffix}" for suffix, count in sorted(counts.items()))


def note_skipped(files: Iterable[str], *suffixes: str) -> list[str]:
    """A note with the number of files of other suffixes in the folders of `files`, if any."""
    folders = map(Path, sorted({os.path.dirname(file) for file in files}))
    return [f"skipped by suffix: {skipped}"] if (skipped := count_suffixes(folders, suffixes)) else []


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
    cache: str | None,
    channels: int | None = 3,
    class_names: Sequence[str] | None = None,
    notes: Sequence[str] = (),
    labels: Any = None,
    kind: KindName | None = None,
    read: Callable[[str, int | None, int | None], np.ndarray] = read_image,
) -> Dataset:
    """Decode the files of a listing, by default in color, as in all papers.

    Domains, and classes without `class_names`, are in alphabetical order. Labels are the classes of the entries, or
    `labels`, which may be of any kind. A note counts the skipped files next to the images.
    """
    if not entries:
        raise InputError(f"{name}: no images are listed. Look for empty lists and folders.")
    _check_no_duplicates(entries)
    files = [entry.path for entry in entries]
    arrays = decode_once(
        name,
        files,
        lambda path: {"inputs": read(path, size, channels)[None]},
        files=files,
        options=decoding_options(size, channels),
        cache=cache,
    )
    suffixes = {os.path.splitext(file)[1].lower() for file in files}
    return assemble_by_name(
        name,
        arrays["inputs"],
        [entry.label for entry in entries] if labels is None else labels,
        class_names=class_names,
        domains=[entry.domain for entry in entries],
        splits=[entry.split for entry in entries],
        notes=[*notes, *note_skipped(files, *IMAGE_SUFFIXES, *suffixes)],
        kind=kind,
    )


def _check_no_duplicates(entries: Sequence[ImageEntry]) -> None:
    first: dict[str, ImageEntry] = {}
    for entry in entries:
        if (before := first.setdefault(entry.path, entry)) is not entry:
            raise InputError(
                f"{entry.path} is listed twice, for {before.domain} ({before.split}) and for {entry.domain} "
                f"({entry.split}). Leave it in one list."
            )


def check_shared_classes(name: str, entries: Iterable[ImageEntry], alternative: str = "") -> None:
    """Raise InputError for a class in a single domain, usually a misspelled folder; `alternative` ends the advice."""
    counts = Counter((entry.domain, entry.label) for entry in entries)
    owners: dict[str, list[str]] = {}
    for domain, label in counts:
        owners.setdefault(label, []).append(domain)
    if len({domain for domain, _ in counts}) < 2:
        return
    for label, (domain, *others) in owners.items():
        if not others:
            shared = [other for other, domains in owners.items() if len(domains) > 1]
            raise InputError(
                f"{name}: class '{label}' exists in domain '{domain}' only (images: {counts[domain, label]}). Rename "
                f"or remove it{alternative}. {nearest(label, shared)}"
            )


def note_size(entries: Sequence[object], num: int) -> list[str]:
    """A note if the data set was published with another number of examples."""
    return [] if len(entries) == num else [f"{len(entries):,} of the {num:,} examples that were published"]


class ListedFile(NamedTuple):
    """One line "<path> <label>" of a list."""

    line: int  # from 1
    path: str  # as in the list: <domain>/<class>/<file>
    label: str


def read_split_list(file: Path, root: Path, pattern: str = r"(.+) (\d+)") -> list[ListedFile]:
    """Read a list of files below `root` with their labels; blank lines are skipped."""
    with report_read_errors(file):
        lines = read_text(file).splitlines()
    rows = []
    for line, text in enumerate(map(str.strip, lines), start=1):
        match = re.fullmatch(pattern, text)
        if text and not match:
            raise InputError(f"{file}, line {line}: '{text}' is not '<file> <label>'. Correct the line.")
        rows += [ListedFile(line, match[1].strip(), match[2])] if match else []
    check_files_exist(file, ((row.line, str(root / row.path)) for row in rows))
    return rows


def read_csv(path: Path, separator: str = ",") -> Iterator[tuple[int, list[str]]]:
    """(line, cells) of every nonblank line; cells separated by tabs are not quoted."""
    quoting = csv.QUOTE_NONE if separator == "\t" else csv.QUOTE_MINIMAL
    with report_read_errors(path), path.open(newline="", encoding="utf-8-sig") as file:
        reader = csv.reader(file, delimiter=separator, quoting=quoting)
        yield from ((reader.line_num, [cell.strip() for cell in cells]) for cells in reader if any(cells))


def read_table(
    path: Path, separator: str = ",", header: Sequence[str] = ()
) -> tuple[list[str], list[tuple[int, list[str]]]]:
    """(the names of the columns, (line, cells) of every other nonblank line); without `header`, the first has names."""
    first = [(0, list(header))] if header else []
    (_, names), *lines = [*first, *read_csv(path, separator)] or [(0, [])]
    if not lines:
        raise InputError(f"{path} has no rows below a header. Give the path of a table that has.")
    for line, cells in lines:
        if len(cells) != len(names):
            raise InputError(f"{path}, line {line}: {len(cells)} cells for {len(names)} columns. Correct the line.")
    return names, lines


def read_csv_columns(path: Path, columns: Sequence[str]) -> list[tuple[int, list[str]]]:
    """(line, the cells of these columns) of every line of a table."""
    header, lines = read_table(path)
    for column in columns:
        if column not in header:
            raise InputError(f"{path} has no column '{column}'. {nearest(column, header)}")
    places = [header.index(column) for column in columns]
    return [(line, [cells[place] for place in places]) for line, cells in lines]


def parse_numbers(path: Path, line: int, cells: Iterable[str], missing: str | None = None) -> np.ndarray:
    """Parse finite numbers; NaN for `missing`."""
    numbers = []
    for cell in cells:
        try:
            number = np.nan if cell == missing else float(cell)
        except ValueError:
            number = np.inf
        if np.isinf(number) or (np.isnan(number) and cell != missing):
            raise InputError(f"{path}, line {line}: '{cell}' is not a finite number. Correct it, or download the file.")
        numbers.append(number)
    return np.array(numbers)


def parse_count(path: Path, line: int, field: str, text: str) -> int:
    """Parse a nonnegative integer, written 1 or 1.0."""
    if not re.fullmatch(r"\d+(\.0*)?", text):
        raise InputError(f"{path}, line {line}: {field} is '{text}', not a whole number from 0. Correct the line.")
    return int(float(text))


def check_files_exist(listing: Path, paths: Iterable[tuple[int, str]]) -> None:
    """Raise InputError for the first (line, path) of a list whose file does not exist.

    Every folder is listed once, which is much faster than checking each file.
    """
    contents: dict[str, set[str]] = {}
    for line, path in paths:
        folder, file = os.path.split(path)
        if folder not in contents:
            contents[folder] = set(os.listdir(folder)) if os.path.isdir(folder) else set()
        if file not in contents[folder]:
            raise InputError(f"{listing}, line {line}: {path} does not exist. Restore the file, or delete the line.")

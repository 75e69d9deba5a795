"""Data sets whose domains and classes are known: folders are matched to them whatever their case and separators."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from fedjax_het.data.dataset import Dataset
from fedjax_het.data.sources._folders import find_domain, subfolders
from fedjax_het.data.sources._image_listing import ImageEntry, check_shared_classes, image_dataset, note_size
from fedjax_het.data.sources._io_errors import require_dataset
from fedjax_het.errors import InputError, nearest


class NamedDataset(NamedTuple):
    """What is known of a data set before it is read."""

    name: str
    title: str
    url: str
    domains: Mapping[str, tuple[str, ...]]  # our name of a domain -> what else its folder may be called
    classes: Mapping[str, tuple[str, ...]]  # likewise, in the order of their labels; empty: as they are found
    num_examples: int
    inside: tuple[str, ...] = ()  # folders below the path in which the domains may lie
    ignored: str = ""  # a folder in every domain that repeats what the others hold


class DomainFolders(NamedTuple):
    """Where the domains lie."""

    root: Path
    folders: dict[str, Path]  # our name of a domain -> its folder
    notes: list[str]


def normalize_name(name: str) -> str:
    """Letters and digits, small: 'Real World', 'real_world' and 'RealWorld' are one name."""
    return re.sub(r"[^a-z0-9]", "", name.lower())


def find_domains(path: str, known: NamedDataset) -> DomainFolders:
    """The domains' folders, in `path` itself or in one of the folders that are usual.

    Raises InputError where there is none, and for two folders of one domain.
    """
    place = require_dataset(path, known.title, known.url)
    ours = _spellings(known.domains)
    for root in [place, *(place / each for each in known.inside)]:
        matched = [
            (ours[normalize_name(each.name)], each) for each in _folders(root) if normalize_name(each.name) in ours
        ]
        if matched:
            _check_once(known, matched)
            others = [each.name for each in _folders(root) if normalize_name(each.name) not in ours]
            return DomainFolders(root, dict(sorted(matched)), list(_notes(known, dict(matched), others)))
    raise InputError(
        f"{place} holds no domain of {known.title}. Looked for folders {', '.join(known.domains)} in it"
        f"{''.join(f', in {each}/' for each in known.inside)}. {known.title} is published at {known.url}"
    )


def list_folders(known: NamedDataset, found: DomainFolders) -> list[ImageEntry]:
    """Every image in the class folders, its class by our name.

    Raises InputError for a class that the data set does not have, or that one domain alone has.
    """
    entries = [
        entry
        for domain, folder in found.folders.items()
        for entry in find_domain(domain, folder, ignored=known.ignored)
    ]
    spelt = {normalize_name(entry.label): entry.label for entry in reversed(entries)}
    ours = _spellings(known.classes) or spelt
    for entry in entries:
        if normalize_name(entry.label) not in ours:
            raise InputError(
                f"{Path(entry.path).parent} is no class of {known.title}. {nearest(entry.label, known.classes)}"
            )
    entries = [entry._replace(label=ours[normalize_name(entry.label)]) for entry in entries]
    check_shared_classes(known.title, entries)
    return entries


def decode_named(
    known: NamedDataset, entries: list[ImageEntry], notes: Iterable[str], size: int | None, cache: str | None
) -> Dataset:
    """Decode in colour, as all papers do, and label by the known order of classes."""
    return image_dataset(
        known.name,
        entries,
        size=size,
        channels=3,
        cache=cache,
        class_names=tuple(known.classes) or None,
        notes=[*notes, *note_size(entries, known.num_examples)],
    )


def _folders(root: Path) -> list[Path]:
    return subfolders(root) if root.is_dir() else []


def _spellings(names: Mapping[str, tuple[str, ...]]) -> dict[str, str]:
    return {normalize_name(each): name for name, others in names.items() for each in (name, *others)}


def _check_once(known: NamedDataset, matched: list[tuple[str, Path]]) -> None:
    for domain, count in Counter(domain for domain, _ in matched).items():
        if count > 1:
            twice = " and ".join(str(folder) for name, folder in matched if name == domain)
            raise InputError(f"{known.title}: {twice} are both the domain {domain}. Remove one.")


def _notes(known: NamedDataset, matched: dict[str, Path], others: list[str]) -> Iterator[str]:
    renamed = [f"{folder.name} as {domain}" for domain, folder in matched.items() if folder.name != domain]
    missing = [domain for domain in known.domains if domain not in matched]
    if renamed:
        yield f"read {', '.join(renamed)}"
    if missing:
        yield f"no folder for {', '.join(missing)}"
    if others:
        yield f"passed over: {', '.join(others)}"

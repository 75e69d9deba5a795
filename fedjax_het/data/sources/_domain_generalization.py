"""Data sets whose domains and classes are known: folders are matched to them whatever their case and separators."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from fedjax_het.data.dataset import Dataset
from fedjax_het.data.sources._folders import list_domain_images, list_subfolders, normalize_name
from fedjax_het.data.sources._image_listing import (
    ImageEntry,
    check_shared_classes,
    image_dataset,
    note_size,
    read_split_list,
)
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


def find_domains(path: str, known: NamedDataset) -> DomainFolders:
    """The domains' folders, in `path` itself or in one of the folders that are usual.

    Raises InputError where there is none, and for two folders of one domain.
    """
    place = require_dataset(path, known.title, known.url)
    ours = _spellings(known.domains)
    for root in [place, *(place / each for each in known.inside)]:
        matched = [
            (ours[normalize_name(each.name)], each)
            for each in _list_subfolders(root)
            if normalize_name(each.name) in ours
        ]
        if matched:
            _check_single_folders(known, matched)
            others = [each.name for each in _list_subfolders(root) if normalize_name(each.name) not in ours]
            return DomainFolders(root, dict(sorted(matched)), list(_describe_folders(known, dict(matched), others)))
    raise InputError(
        f"{place} holds no domain of {known.title}. Looked for folders {', '.join(known.domains)} in it"
        f"{''.join(f', in {each}/' for each in known.inside)}. {known.title} is published at {known.url}"
    )


def list_class_images(known: NamedDataset, found: DomainFolders) -> list[ImageEntry]:
    """Every image in the class folders, its class by our name.

    Raises InputError for a class that the data set does not have, or that one domain alone has.
    """
    entries = [
        entry
        for domain, folder in found.folders.items()
        for entry in list_domain_images(domain, folder, ignored=known.ignored)
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


def _list_subfolders(root: Path) -> list[Path]:
    return list_subfolders(root) if root.is_dir() else []


def _spellings(names: Mapping[str, tuple[str, ...]]) -> dict[str, str]:
    return {normalize_name(each): name for name, others in names.items() for each in (name, *others)}


def _check_single_folders(known: NamedDataset, matched: list[tuple[str, Path]]) -> None:
    for domain, count in Counter(domain for domain, _ in matched).items():
        if count > 1:
            twice = " and ".join(str(folder) for name, folder in matched if name == domain)
            raise InputError(f"{known.title}: {twice} are both the domain {domain}. Remove one.")


def _describe_folders(known: NamedDataset, matched: dict[str, Path], others: list[str]) -> Iterator[str]:
    renamed = [f"{folder.name} as {domain}" for domain, folder in matched.items() if folder.name != domain]
    missing = [domain for domain in known.domains if domain not in matched]
    if renamed:
        yield f"read {', '.join(renamed)}"
    if missing:
        yield f"no folder for {', '.join(missing)}"
    if others:
        yield f"passed over: {', '.join(others)}"


_PACS = NamedDataset(
    name="pacs",
    title="PACS",
    url="https://dali-dl.github.io/project_iccv2017.html",
    domains={"art_painting": ("art",), "cartoon": (), "photo": (), "sketch": ()},
    classes=dict.fromkeys(("dog", "elephant", "giraffe", "guitar", "horse", "house", "person"), ()),
    num_examples=9_991,
    inside=("images", "raw_images", "PACS", "pacs/images", "kfold"),
)
_PACS_LISTS = ("splits", "Train val splits and h5py files pre-read")
_VLCS = NamedDataset(
    name="vlcs",
    title="VLCS",
    url="http://www.mediafire.com/file/7yv132lgn1v267r/vlcs.tar.gz/file (with train, crossval and test), and in class "
    "folders through https://github.com/facebookresearch/DomainBed",
    domains={"caltech": ("Caltech101",), "labelme": (), "pascal": ("VOC2007", "VOC"), "sun": ("SUN09",)},
    classes={name: (str(i),) for i, name in enumerate(("bird", "car", "chair", "dog", "person"))},
    num_examples=10_729,
    inside=("VLCS",),
    ignored="full",
)
_OFFICE_HOME = NamedDataset(
    name="office_home",
    title="Office-Home",
    url="https://www.hemanthdv.org/officeHomeDataset.html",
    domains={"art": (), "clipart": (), "product": (), "real_world": ("Real",)},
    classes={},
    num_examples=15_588,
    inside=("office_home", "office_home_dg", "OfficeHomeDataset_10072016"),
)
_DIGITS_DG = NamedDataset(
    name="digits_dg",
    title="Digits-DG",
    url="https://github.com/KaiyangZhou/Dassl.pytorch/blob/master/DATASETS.md",
    domains={"mnist": (), "mnist_m": (), "svhn": (), "syn": ()},
    classes={str(digit): () for digit in range(10)},
    num_examples=24_000,
    inside=("digits_dg",),
)


def pacs(path: str, size: int | None = None, cache: str | None = None) -> Dataset:
    """PACS, 4 domains, 7 classes: <domain>/<class>/<image> in `path`, or below images/, raw_images/ or PACS/.

    Where the usual split lists lie beside the images (splits/<domain>_train_kfold.txt, ..._crossval_kfold.txt; or in
    "Train val splits and h5py files pre-read"), the former is for training and the latter is the own validation split;
    the test list, which is the whole domain, is what `unseen_domains` holds out and is not read.
    size: the side to resize to; the published images are 227 x 227. cache: see `folders`.
    Raises InputError for a class that PACS does not have, and for lists that do not fit the images.
    Li et al., ICCV 2017. arXiv:1710.03077
    """
    found = find_domains(path, _PACS)
    entries = list_class_images(_PACS, found)
    entries, notes = _apply_pacs_lists(found, entries)
    return decode_named(_PACS, entries, [*found.notes, *notes], size, cache)


def vlcs(path: str, size: int | None = None, cache: str | None = None) -> Dataset:
    """VLCS, 4 domains, 5 classes: <domain>/{train,crossval,test}/<0..4>/<image> or <domain>/<class>/<image>.

    The former's folders are the data set's own split; a domain's folder `full` repeats them and is passed over. Sizes
    differ from image to image: give `size`. cache: see `folders`.
    Raises InputError for a class that VLCS does not have.
    Fang et al., Unbiased Metric Learning, ICCV 2013.
    """
    return _read_class_folders(_VLCS, path, size, cache)


def office_home(path: str, size: int | None = None, cache: str | None = None) -> Dataset:
    """Office-Home, 4 domains, 65 classes: <domain>/<class>/<image>, or with {train,val} between as in Dassl.

    Names of domains and classes may differ in case and separators from domain to domain; a class is called as the
    first domain that has it spells it. Sizes differ from image to image: give `size`. cache: see `folders`.
    Raises InputError for a class that one domain alone has.
    Venkateswara et al., CVPR 2017. arXiv:1706.07522
    """
    return _read_class_folders(_OFFICE_HOME, path, size, cache)


def digits_dg(path: str, size: int | None = None, cache: str | None = None) -> Dataset:
    """Digits-DG, 4 domains of 32 x 32 digits: <domain>/{train,val}/<0..9>/<image>; val is the own validation split.

    cache: see `folders`.
    Raises InputError for a class that is no digit.
    Zhou et al., AAAI 2020. arXiv:2003.06054
    """
    return _read_class_folders(_DIGITS_DG, path, size, cache)


def _read_class_folders(known: NamedDataset, path: str, size: int | None, cache: str | None) -> Dataset:
    found = find_domains(path, known)
    return decode_named(known, list_class_images(known, found), found.notes, size, cache)


def _apply_pacs_lists(found: DomainFolders, entries: list[ImageEntry]) -> tuple[list[ImageEntry], list[str]]:
    """(the entries that PACS' lists name, with their split; notes). Without lists, as they are."""
    places = [folder / each for folder in (found.root, found.root.parent) for each in _PACS_LISTS]
    lists = next((place for place in places if place.is_dir()), None)
    if lists is None:
        return entries, []
    by_path = {entry.path: entry for entry in entries}
    labels = list(_PACS.classes)
    listed = []
    for domain, folder in found.folders.items():
        for word, split in (("train", "train"), ("crossval", "valid")):
            file = lists / f"{domain}_{word}_kfold.txt"
            for row in read_split_list(file, found.root):
                entry = by_path.get(str(folder.parent / row.path))
                if entry is None or labels.index(entry.label) + 1 != row.label:
                    raise InputError(f"{file}, line {row.line}: label {row.label} is not that of {row.path}'s folder.")
                if entry.domain != domain:
                    raise InputError(f"{file}, line {row.line}: {row.path} is of another domain than its list.")
                listed.append(entry._replace(split=split))
    left_out = len(entries) - len({entry.path for entry in listed})
    notes = [f"split by the lists in {lists}"] + ([f"{left_out} images are in no list: left out"] if left_out else [])
    return listed, notes

"""PACS, VLCS, Office-Home and Digits-DG: folders matched by name to the known domains and classes."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from fedjax_het.data.dataset import Dataset
from fedjax_het.data.sources._folders import list_domain_images, normalize_name
from fedjax_het.data.sources._image_listing import (
    ImageEntry,
    check_shared_classes,
    image_dataset,
    list_subfolders,
    note_size,
    read_split_list,
)
from fedjax_het.data.sources._io_errors import require_dataset
from fedjax_het.errors import InputError, nearest


class _NamedDataset(NamedTuple):
    """A data set with known domains; names are compared ignoring case and separators."""

    name: str
    title: str
    url: str
    domains: Mapping[str, tuple[str, ...]]  # our name of a domain -> other names of its folder
    classes: Mapping[str, tuple[str, ...]]  # likewise, in the order of their labels; empty: as in the folders
    num_examples: int
    inside: tuple[str, ...] = ()  # subfolders of the path that may contain the domains


_PACS = _NamedDataset(
    name="pacs",
    title="PACS",
    url="https://dali-dl.github.io/project_iccv2017.html",
    domains={"art_painting": ("art",), "cartoon": (), "photo": (), "sketch": ()},
    classes=dict.fromkeys(("dog", "elephant", "giraffe", "guitar", "horse", "house", "person"), ()),
    num_examples=9_991,
    inside=("images", "raw_images", "PACS", "pacs/images", "kfold"),
)
_PACS_LISTS = ("splits", "Train val splits and h5py files pre-read")
_VLCS = _NamedDataset(
    name="vlcs",
    title="VLCS",
    url="http://www.mediafire.com/file/7yv132lgn1v267r/vlcs.tar.gz/file (with train, crossval and test), and in class "
    "folders through https://github.com/facebookresearch/DomainBed",
    domains={"caltech": ("Caltech101",), "labelme": (), "pascal": ("VOC2007", "VOC"), "sun": ("SUN09",)},
    classes={name: (str(i),) for i, name in enumerate(("bird", "car", "chair", "dog", "person"))},
    num_examples=10_729,
    inside=("VLCS",),
)
_OFFICE_HOME = _NamedDataset(
    name="office_home",
    title="Office-Home",
    url="https://www.hemanthdv.org/officeHomeDataset.html",
    domains={"art": (), "clipart": (), "product": (), "real_world": ("Real",)},
    classes={},
    num_examples=15_588,
    inside=("office_home", "office_home_dg", "OfficeHomeDataset_10072016"),
)
_DIGITS_DG = _NamedDataset(
    name="digits_dg",
    title="Digits-DG",
    url="https://github.com/KaiyangZhou/Dassl.pytorch/blob/master/DATASETS.md",
    domains={"mnist": (), "mnist_m": (), "svhn": (), "syn": ()},
    classes={str(digit): () for digit in range(10)},
    num_examples=24_000,
    inside=("digits_dg",),
)


def pacs(path: str, size: int | None = None, cache: str | None = None) -> Dataset:
    """Read PACS, 4 domains, 7 classes: <domain>/<class>/<image> in `path`, or below images/, raw_images/ or PACS/.

    If the usual split lists exist (splits/<domain>_train_kfold.txt, ..._crossval_kfold.txt; or in "Train val splits and
    h5py files pre-read"), the train list is for training and the crossval list is the published validation split. The
    test list, which is the whole domain, is not read: use `federate(unseen_domains=...)` to hold out a domain.

    Args:
        path: The folder of the domains, or its parent.
        size: The side length to which images are resized; published images are 227 x 227.
        cache: The cache folder for decoded images, see `folders`.

    Raises:
        InputError: A folder is not a class of PACS, or a list does not match the images.

    References:
        Li et al., ICCV 2017. arXiv:1710.03077
    """
    root, domains, notes = _find_domains(path, _PACS)
    entries, list_notes = _apply_pacs_lists(root, domains, _list_known_classes(_PACS, domains, notes))
    return _decode(_PACS, entries, [*notes, *list_notes], size, cache)


def vlcs(path: str, size: int | None = None, cache: str | None = None) -> Dataset:
    """Read VLCS, 4 domains, 5 classes: <domain>/{train,crossval,test}/<0..4>/<image> or <domain>/<class>/<image>.

    The split folders are the published splits; a domain's folder `full`, which repeats them, is skipped.

    Args:
        path: The folder of the domains, or a parent folder.
        size: The side length to which images are resized; required, because image sizes differ.
        cache: The cache folder for decoded images, see `folders`.

    Raises:
        InputError: A folder is not a class of VLCS.

    References:
        Fang et al., Unbiased Metric Learning, ICCV 2013.
    """
    return _read_class_folders(_VLCS, path, size, cache)


def office_home(path: str, size: int | None = None, cache: str | None = None) -> Dataset:
    """Read Office-Home, 4 domains, 65 classes: <domain>/<class>/<image>, or with {train,val} between as in Dassl.

    Names of domains and classes may differ in case and separators between domains; class names are taken from the first
    domain.

    Args:
        path: The folder of the domains, or a parent folder.
        size: The side length to which images are resized; required, because image sizes differ.
        cache: The cache folder for decoded images, see `folders`.

    Raises:
        InputError: A class exists in a single domain.

    References:
        Venkateswara et al., CVPR 2017. arXiv:1706.07522
    """
    return _read_class_folders(_OFFICE_HOME, path, size, cache)


def digits_dg(path: str, size: int | None = None, cache: str | None = None) -> Dataset:
    """Read Digits-DG, 4 domains of 32 x 32 digits: <domain>/{train,val}/<0..9>/<image>; val is the validation split.

    Args:
        path: The folder of the domains, or a parent folder.
        size: The side length to which images are resized.
        cache: The cache folder for decoded images, see `folders`.

    Raises:
        InputError: A class folder is not a digit.

    References:
        Zhou et al., AAAI 2020. arXiv:2003.06054
    """
    return _read_class_folders(_DIGITS_DG, path, size, cache)


def _read_class_folders(spec: _NamedDataset, path: str, size: int | None, cache: str | None) -> Dataset:
    _, domains, notes = _find_domains(path, spec)
    return _decode(spec, _list_known_classes(spec, domains, notes), notes, size, cache)


def _find_domains(path: str, spec: _NamedDataset) -> tuple[Path, dict[str, Path], list[str]]:
    """(the folder of the domains, {our name of a domain: its folder}, notes)."""
    place = require_dataset(path, spec.title, spec.url)
    known = _list_spellings(spec.domains)
    for root in [place, *(place / each for each in spec.inside)]:
        names = {folder: known.get(normalize_name(folder.name)) for folder in list_subfolders(root)}
        matched = [(name, folder) for folder, name in names.items() if name]
        if matched:
            for domain, count in Counter(name for name, _ in matched).items():
                if count > 1:
                    twice = " and ".join(str(folder) for name, folder in matched if name == domain)
                    raise InputError(f"{spec.title}: {twice} are both the domain {domain}. Remove one.")
            others = [folder.name for folder, name in names.items() if not name]
            return root, dict(sorted(matched)), list(_describe_folders(spec, dict(matched), others))
    raise InputError(
        f"{place} holds no domain of {spec.title}. Looked for folders {', '.join(spec.domains)} in it"
        f"{''.join(f', in {each}/' for each in spec.inside)}. {spec.title} is published at {spec.url}"
    )


def _describe_folders(spec: _NamedDataset, domains: Mapping[str, Path], others: list[str]) -> Iterator[str]:
    renamed = [f"{folder.name} as {domain}" for domain, folder in domains.items() if folder.name != domain]
    missing = [domain for domain in spec.domains if domain not in domains]
    if renamed:
        yield f"read {', '.join(renamed)}"
    if missing:
        yield f"no folder for {', '.join(missing)}"
    if others:
        yield f"skipped: {', '.join(others)}"


def _list_spellings(names: Mapping[str, tuple[str, ...]]) -> dict[str, str]:
    return {normalize_name(each): name for name, others in names.items() for each in (name, *others)}


def _list_known_classes(spec: _NamedDataset, domains: Mapping[str, Path], notes: list[str]) -> list[ImageEntry]:
    """List the images in the class folders, with our names of the classes."""
    entries = [entry for domain, folder in domains.items() for entry in list_domain_images(domain, folder, notes)]
    known = _list_spellings(spec.classes) or {normalize_name(x.label): x.label for x in reversed(entries)}
    for entry in entries:
        if normalize_name(entry.label) not in known:
            raise InputError(
                f"{Path(entry.path).parent} is no class of {spec.title}. {nearest(entry.label, spec.classes)}"
            )
    entries = [entry._replace(label=known[normalize_name(entry.label)]) for entry in entries]
    check_shared_classes(spec.title, entries)
    return entries


def _apply_pacs_lists(
    root: Path, domains: Mapping[str, Path], entries: list[ImageEntry]
) -> tuple[list[ImageEntry], list[str]]:
    """(the entries in the lists, with their splits; notes). Without lists, all entries."""
    places = [folder / each for folder in (root, root.parent) for each in _PACS_LISTS]
    lists = next((place for place in places if place.is_dir()), None)
    if lists is None:
        return entries, []
    by_path = {entry.path: entry for entry in entries}
    labels = list(_PACS.classes)
    listed = []
    for domain, folder in domains.items():
        for word, split in (("train", "train"), ("crossval", "valid")):
            file = lists / f"{domain}_{word}_kfold.txt"
            for row in read_split_list(file, root):
                entry = by_path.get(str(folder.parent / row.path))
                if entry is None or labels.index(entry.label) + 1 != row.label:
                    raise InputError(f"{file}, line {row.line}: label {row.label} is not that of {row.path}'s folder.")
                if entry.domain != domain:
                    raise InputError(f"{file}, line {row.line}: {row.path} is of another domain than its list.")
                listed.append(entry._replace(split=split))
    num_left = len(entries) - len({entry.path for entry in listed})
    notes = [f"split by the lists in {lists}"] + ([f"{num_left} images are in no list: left out"] if num_left else [])
    return listed, notes


def _decode(
    spec: _NamedDataset, entries: list[ImageEntry], notes: Sequence[str], size: int | None, cache: str | None
) -> Dataset:
    """Decode the images, and label them in the known order of classes."""
    return image_dataset(
        spec.name,
        entries,
        size=size,
        cache=cache,
        class_names=tuple(spec.classes) or None,
        notes=[*notes, *note_size(entries, spec.num_examples)],
    )

"""PACS, VLCS, Office-Home, Digits-DG, Office-Caltech-10 and CINIC-10: class folders with known domains and classes."""

import inspect
import itertools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from fedjax_het.data.dataset import Dataset
from fedjax_het.data.sources._assembly import SPLITS
from fedjax_het.data.sources._digits import read_pair
from fedjax_het.data.sources._folders import list_domain_images, normalize_name
from fedjax_het.data.sources._image_listing import (
    ImageEntry,
    check_shared_classes,
    find_splits,
    image_dataset,
    list_entries,
    list_subfolders,
    note_size,
    read_split_list,
)
from fedjax_het.data.sources._io_errors import require_dataset
from fedjax_het.errors import InputError, nearest
from fedjax_het.validation import Count, validate_arguments

_PACS_CLASSES = ("dog", "elephant", "giraffe", "guitar", "horse", "house", "person")
_OFFICE_CLASSES = (
    *("back_pack", "bike", "calculator", "headphones", "keyboard", "laptop_computer", "monitor", "mouse", "mug"),
    "projector",
)
_CINIC_CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
_PACS_LISTS = ("splits", "Train val splits and h5py files pre-read")


class _Layout(NamedTuple):
    """A data set of class folders; names of domains and classes are compared ignoring case and separators."""

    title: str
    url: str
    num_examples: int
    domains: Mapping[str, tuple[str, ...]]  # our name of a domain -> other names of its folder; empty: no such folders
    classes: Mapping[str, tuple[str, ...]]  # likewise, in the order of their labels; empty: as in the folders
    inside: tuple[str, ...] = ()  # subfolders of the path that may contain the domains
    lists: str = ""  # the published split lists, for notes
    size: int | None = None  # the default
    domain_of: Callable[[str], str] = str  # path -> domain, without folders of domains


ListReader = Callable[[Path, Mapping[str, Path]], list[tuple[str, ImageEntry]] | None]
"""(folder of the domains, {domain: folder}) -> (origin, image) for the published split lists; None without lists."""


def _source(**fields: Any) -> Callable[[ListReader], Callable[..., Dataset]]:
    """Turn a reader of published split lists into the source of a data set with these fields of `_Layout`."""
    layout = _Layout(**fields)

    def decorate(read_lists: ListReader) -> Callable[..., Dataset]:
        def source(path: str, size: Count | None = layout.size, cache: str | None = None) -> Dataset:
            root, domains, notes = _find_domains(path, layout)
            entries = _list_known_classes(layout, domains, notes)
            if (listed := read_lists(root, domains)) is not None:
                entries = _find_listed(listed, entries, notes)
            elif layout.lists:
                notes.append(f"no published split: no {layout.lists}")
            return image_dataset(
                read_lists.__name__,
                entries,
                size=size,
                cache=cache,
                class_names=tuple(layout.classes) or None,
                notes=[*notes, *note_size(entries, layout.num_examples)],
            )

        text, _, references = (inspect.getdoc(read_lists) or "").partition("\n\nReferences:")
        source.__doc__ = f"""{text}

Args:
    path: The folder of the domains or splits, or a parent folder.
    size: The side length to which images are resized; required if image sizes differ.
    cache: The cache folder for decoded images, see `folders`.

Raises:
    InputError: A folder or list is missing, a folder is not a class, or a list does not match the images.

References:{references}"""
        source.__name__ = source.__qualname__ = read_lists.__name__
        return validate_arguments(source)

    return decorate


@_source(
    title="PACS",
    url="https://dali-dl.github.io/project_iccv2017.html",
    num_examples=9_991,
    domains={"art_painting": ("art",), "cartoon": (), "photo": (), "sketch": ()},
    classes=dict.fromkeys(_PACS_CLASSES, ()),
    inside=("images", "raw_images", "PACS", "pacs/images", "kfold"),
    lists=f"lists in {_PACS_LISTS[0]}/",
)
def pacs(root: Path, domains: Mapping[str, Path]) -> list[tuple[str, ImageEntry]] | None:
    """Read PACS, 4 domains, 7 classes: <domain>/<class>/<image>, 227 x 227 as published.

    If the usual split lists exist (splits/<domain>_train_kfold.txt, ..._crossval_kfold.txt; or in "Train val splits and
    h5py files pre-read"), the train list is for training and the crossval list is the published validation split. The
    test list, which is the whole domain, is not read: use `federate(unseen_domains=...)` to hold out a domain.

    References:
        Li et al., ICCV 2017. arXiv:1710.03077
    """
    places = [folder / name for folder in (root, root.parent) for name in _PACS_LISTS]
    lists = next((place for place in places if place.is_dir()), None)
    labels = {str(i): name for i, name in enumerate(_PACS_CLASSES, start=1)}
    if lists is None:
        return None
    files = [
        (lists / f"{domain}_{word}_kfold.txt", domain, word) for domain in domains for word in ("train", "crossval")
    ]
    return [
        (f"{file}, line {row.line}", ImageEntry(str(root / row.path), labels.get(row.label, row.label), domain, word))
        for file, domain, word in files
        for row in read_split_list(file, root)
    ]


@_source(
    title="VLCS",
    url="http://www.mediafire.com/file/7yv132lgn1v267r/vlcs.tar.gz/file (with train, crossval and test), and in "
    "class folders through https://github.com/facebookresearch/DomainBed",
    num_examples=10_729,
    domains={"caltech": ("Caltech101",), "labelme": (), "pascal": ("VOC2007", "VOC"), "sun": ("SUN09",)},
    classes={name: (str(i),) for i, name in enumerate(("bird", "car", "chair", "dog", "person"))},
    inside=("VLCS",),
)
def vlcs(*_: object) -> None:
    """Read VLCS, 4 domains, 5 classes: <domain>/{train,crossval,test}/<0..4>/<image> or <domain>/<class>/<image>.

    The split folders are the published splits; a domain's folder `full`, which repeats them, is skipped.

    References:
        Fang et al., Unbiased Metric Learning, ICCV 2013.
    """


@_source(
    title="Office-Home",
    url="https://www.hemanthdv.org/officeHomeDataset.html",
    num_examples=15_588,
    domains={"art": (), "clipart": (), "product": (), "real_world": ("Real",)},
    classes={},
    inside=("office_home", "office_home_dg", "OfficeHomeDataset_10072016"),
)
def office_home(*_: object) -> None:
    """Read Office-Home, 4 domains, 65 classes: <domain>/<class>/<image>, or with {train,val} between as in Dassl.

    Names of domains and classes may differ in case and separators between domains; class names are taken from the first
    domain. A class that exists in a single domain is refused.

    References:
        Venkateswara et al., CVPR 2017. arXiv:1706.07522
    """


@_source(
    title="Digits-DG",
    url="https://github.com/KaiyangZhou/Dassl.pytorch/blob/master/DATASETS.md",
    num_examples=24_000,
    domains={"mnist": (), "mnist_m": (), "svhn": (), "syn": ()},
    classes=dict.fromkeys("0123456789", ()),
    inside=("digits_dg",),
)
def digits_dg(*_: object) -> None:
    """Read Digits-DG, 4 domains of 32 x 32 digits: <domain>/{train,val}/<0..9>/<image>; val is the validation split.

    References:
        Zhou et al., AAAI 2020. arXiv:2003.06054
    """


@_source(
    title="Office-Caltech-10 in FedBN's files",
    url="https://github.com/med-air/FedBN",
    num_examples=2_533,
    domains={"amazon": (), "caltech": (), "dslr": (), "webcam": ()},
    classes=dict.fromkeys(_OFFICE_CLASSES, ()),
    inside=("office_caltech_10",),
    lists="<site>_train.pkl beside the sites",
    size=256,
)
def office_caltech10(root: Path, domains: Mapping[str, Path]) -> list[tuple[str, ImageEntry]] | None:
    """Read Office-Caltech-10, ten classes from four sites: <site>/<class>/<image>, resized to 256 x 256 as in FedBN.

    The split is given by FedBN's pickles of (paths, class names) next to the sites, <site>_train.pkl and
    <site>_test.pkl. Without these files, all images are for training.

    References:
        Gong et al., Geodesic Flow Kernel for Unsupervised Domain Adaptation, CVPR 2012. The split: FedBN, ICLR 2021,
        arXiv:2102.07623
    """
    if not list_entries(root, "_train.pkl"):
        return None
    listed = []
    for domain, split in itertools.product(domains, ("train", "test")):
        file = root / f"{domain}_{split}.pkl"
        paths, labels = read_pair(file)
        if len(paths) != len(labels):
            raise InputError(f"{file} lists {len(paths)} images and {len(labels)} classes. Download it again.")
        images = [domains[domain].joinpath(*Path(str(path)).parts[-2:]) for path in paths]  # <class>/<image>
        entries = [ImageEntry(str(image), label, domain, split) for image, label in zip(images, labels, strict=True)]
        listed += [(str(file), entry) for entry in entries]
    return listed


@_source(
    title="CINIC-10",
    url="https://datashare.ed.ac.uk/handle/10283/3192",
    num_examples=270_000,
    domains={},
    classes=dict.fromkeys(_CINIC_CLASSES, ()),
    domain_of=lambda path: "cifar10" if Path(path).name.startswith("cifar10") else "imagenet",
)
def cinic10(*_: object) -> None:
    """Read CINIC-10, {train,valid,test}/<class>/<image>.png, 90,000 images of 32 x 32 in each split.

    The domain of an image is its origin: "cifar10", with file names that begin with cifar10, or "imagenet", with
    ImageNet's file names.

    References:
        Darlow et al., CINIC-10 Is Not ImageNet or CIFAR-10, 2018. arXiv:1810.03505
    """


def _find_domains(path: str, layout: _Layout) -> tuple[Path, dict[str, Path], list[str]]:
    """(the folder of the domains, {our name of a domain: its folder}, notes)."""
    place = require_dataset(path, layout.title, layout.url)
    if not layout.domains:
        if missing := {"train", "valid", "test"} - {split for split, _ in find_splits(place, [])}:
            raise InputError(
                f"{place} holds no folder {min(missing)} next to train, valid and test. {layout.title} is published at "
                f"{layout.url}"
            )
        return place, {"": place}, []
    known = _list_spellings(layout.domains)
    for root in [place, *(place / name for name in layout.inside)]:
        names = {folder: known.get(normalize_name(folder.name)) for folder in list_subfolders(root)}
        found: dict[str, Path] = {}
        for folder, name in names.items():
            if name and (other := found.setdefault(name, folder)) != folder:
                raise InputError(f"{layout.title}: {other} and {folder} are both the domain {name}. Remove one.")
        if found:
            notes = {
                "read": [f"{folder.name} as {domain}" for domain, folder in found.items() if folder.name != domain],
                "no folder for": [domain for domain in layout.domains if domain not in found],
                "skipped:": [folder.name for folder, name in names.items() if not name],
            }
            shown = [f"{title} {', '.join(items)}" for title, items in notes.items() if items]
            return root, dict(sorted(found.items())), shown
    raise InputError(
        f"{place} holds no domain of {layout.title}. Looked for folders {', '.join(layout.domains)} in it"
        f"{''.join(f', in {name}/' for name in layout.inside)}. {layout.title} is published at {layout.url}"
    )


def _list_spellings(names: Mapping[str, tuple[str, ...]]) -> dict[str, str]:
    return {normalize_name(spelling): name for name, others in names.items() for spelling in (name, *others)}


def _list_known_classes(layout: _Layout, domains: Mapping[str, Path], notes: list[str]) -> list[ImageEntry]:
    """List the images in the class folders, with our names of the classes."""
    entries = [entry for domain, folder in domains.items() for entry in list_domain_images(domain, folder, notes)]
    known = _list_spellings(layout.classes) or {normalize_name(x.label): x.label for x in reversed(entries)}
    for entry in entries:
        if normalize_name(entry.label) not in known:
            folder = Path(entry.path).parent
            raise InputError(f"{folder} is not a class of {layout.title}. {nearest(entry.label, layout.classes)}")
    entries = [entry._replace(label=known[normalize_name(entry.label)]) for entry in entries]
    check_shared_classes(layout.title, entries)
    return entries if layout.domains else [entry._replace(domain=layout.domain_of(entry.path)) for entry in entries]


def _find_listed(listed: list[tuple[str, ImageEntry]], entries: list[ImageEntry], notes: list[str]) -> list[ImageEntry]:
    """The entries of the listed images, with their splits."""
    by_path, found = {entry.path: entry for entry in entries}, []
    for origin, (path, label, domain, split) in listed:
        if (entry := by_path.get(path)) is None:
            raise InputError(f"{origin}: {path} does not exist. Restore the image, or delete the line.")
        if (entry.domain, normalize_name(entry.label)) != (domain, normalize_name(label)):
            raise InputError(
                f"{origin}: {path} is listed as {label} of {domain}, and is in the folder {entry.label} of "
                f"{entry.domain}. Correct the list."
            )
        found.append(entry._replace(split=SPLITS[split]))
    notes.append("split by the published lists")
    if left := len(by_path) - len({entry.path for entry in found}):
        notes.append(f"{left} images are in no list: left out")
    return found

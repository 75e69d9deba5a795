"""DomainNet and Mini-DomainNet: <domain>/<class>/<image>, and lists of what is for training and what for testing."""

from pathlib import Path

from fedjax_het.data.dataset import Dataset
from fedjax_het.data.sources import _tables
from fedjax_het.data.sources._image_listing import ImageEntry, check_shared_classes, image_dataset
from fedjax_het.data.sources._io_errors import require_dataset, require_path
from fedjax_het.data.sources._named_datasets import (
    DomainFolders,
    NamedDataset,
    decode_named,
    find_domains,
    list_folders,
)
from fedjax_het.errors import InputError

_URL = (
    "http://ai.bu.edu/M3SDA/ (the cleaned version; the lists of Mini-DomainNet: "
    "https://github.com/KaiyangZhou/Dassl.pytorch/blob/master/DATASETS.md)"
)


def mini_domainnet(path: str, lists: str = "splits_mini", size: int | None = None, cache: str | None = None) -> Dataset:
    """Mini-DomainNet; with lists="splits", the whole of DomainNet.

    Lists are <lists>/<domain>_train.txt and <domain>_test.txt, with lines "<domain>/<class>/<file> <label>", labels
    from 0; both lie in `path` or in its folder domainnet/. The domains are those for which there are lists (Dassl's
    Mini-DomainNet has four, and 126 classes). The test lists are the data set's own test split.
    Sizes differ from image to image: give `size`. cache: see `folders`.
    Raises InputError for a list without its partner, a line without its file, labels that contradict the folders, and
    a class that one domain alone has.
    Peng et al., ICCV 2019. arXiv:1812.01754; Zhou et al., TIP 2021. arXiv:2003.07325
    """
    place = require_dataset(path, "DomainNet", _URL)
    root = next((each for each in (place, place / "domainnet") if (each / lists).is_dir()), None)
    if root is None:
        raise InputError(f"{place} holds no folder {lists}, nor does its domainnet/. The lists are published at {_URL}")
    domains = sorted(file.name.removesuffix("_train.txt") for file in require_path(root / lists).glob("*_train.txt"))
    if not domains:
        raise InputError(f"{root / lists} holds no <domain>_train.txt. The lists are published at {_URL}")
    names: dict[int, str] = {}
    entries = [entry for domain in domains for entry in _find_domain(root, lists, domain, names)]
    check_shared_classes("DomainNet", entries)
    labels = range(max(names) + 1)
    without = [label for label in labels if label not in names]
    return image_dataset(
        "mini_domainnet" if lists == "splits_mini" else "domainnet",
        entries,
        size=size,
        channels=3,
        cache=cache,
        class_names=[names.get(label, f"class_{label}") for label in labels],
        notes=[f"split by the lists in {root / lists}", *([f"no list has labels {without}"] if without else [])],
    )


def _find_domain(root: Path, lists: str, domain: str, names: dict[int, str]) -> list[ImageEntry]:
    """The entries of a domain; `names` learns what the labels are called."""
    entries, labels = [], {name: label for label, name in names.items()}
    for split in ("train", "test"):
        file = root / lists / f"{domain}_{split}.txt"
        for row in _tables.read_split_list(file, root):
            name = Path(row.path).parent.name
            if not row.path.startswith(f"{domain}/"):
                raise InputError(f"{file}, line {row.line}: {row.path} is of another domain than its list.")
            if (names.setdefault(row.label, name), labels.setdefault(name, row.label)) != (name, row.label):
                raise InputError(
                    f"{file}, line {row.line}: label {row.label} for {name}, but elsewhere {row.label} is "
                    f"{names[row.label]} and {name} is {labels[name]}. Mend the lists."
                )
            entries.append(ImageEntry(str(root / row.path), name, domain, split))
    return entries


_PACS = NamedDataset(
    name="pacs",
    title="PACS",
    url="https://dali-dl.github.io/project_iccv2017.html",
    domains={"art_painting": ("art",), "cartoon": (), "photo": (), "sketch": ()},
    classes=dict.fromkeys(("dog", "elephant", "giraffe", "guitar", "horse", "house", "person"), ()),
    num_examples=9_991,
    inside=("images", "raw_images", "PACS", "pacs/images", "kfold"),
)
_LISTS = ("splits", "Train val splits and h5py files pre-read")
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
    entries = list_folders(_PACS, found)
    entries, notes = _as_listed(found, entries)
    return decode_named(_PACS, entries, [*found.notes, *notes], size, cache)


def vlcs(path: str, size: int | None = None, cache: str | None = None) -> Dataset:
    """VLCS, 4 domains, 5 classes: <domain>/{train,crossval,test}/<0..4>/<image> or <domain>/<class>/<image>.

    The former's folders are the data set's own split; a domain's folder `full` repeats them and is passed over. Sizes
    differ from image to image: give `size`. cache: see `folders`.
    Raises InputError for a class that VLCS does not have.
    Fang et al., Unbiased Metric Learning, ICCV 2013.
    """
    return _in_folders(_VLCS, path, size, cache)


def office_home(path: str, size: int | None = None, cache: str | None = None) -> Dataset:
    """Office-Home, 4 domains, 65 classes: <domain>/<class>/<image>, or with {train,val} between as in Dassl.

    Names of domains and classes may differ in case and separators from domain to domain; a class is called as the
    first domain that has it spells it. Sizes differ from image to image: give `size`. cache: see `folders`.
    Raises InputError for a class that one domain alone has.
    Venkateswara et al., CVPR 2017. arXiv:1706.07522
    """
    return _in_folders(_OFFICE_HOME, path, size, cache)


def digits_dg(path: str, size: int | None = None, cache: str | None = None) -> Dataset:
    """Digits-DG, 4 domains of 32 x 32 digits: <domain>/{train,val}/<0..9>/<image>; val is the own validation split.

    cache: see `folders`.
    Raises InputError for a class that is no digit.
    Zhou et al., AAAI 2020. arXiv:2003.06054
    """
    return _in_folders(_DIGITS_DG, path, size, cache)


def _in_folders(known: NamedDataset, path: str, size: int | None, cache: str | None) -> Dataset:
    found = find_domains(path, known)
    return decode_named(known, list_folders(known, found), found.notes, size, cache)


def _as_listed(found: DomainFolders, entries: list[ImageEntry]) -> tuple[list[ImageEntry], list[str]]:
    """(the entries that PACS' lists name, with their split; notes). Without lists, as they are."""
    places = [folder / each for folder in (found.root, found.root.parent) for each in _LISTS]
    lists = next((place for place in places if place.is_dir()), None)
    if lists is None:
        return entries, []
    by_path = {entry.path: entry for entry in entries}
    labels = list(_PACS.classes)
    listed = []
    for domain, folder in found.folders.items():
        for word, split in (("train", "train"), ("crossval", "valid")):
            file = lists / f"{domain}_{word}_kfold.txt"
            for row in _tables.read_split_list(file, found.root):
                entry = by_path.get(str(folder.parent / row.path))
                if entry is None or labels.index(entry.label) + 1 != row.label:
                    raise InputError(f"{file}, line {row.line}: label {row.label} is not that of {row.path}'s folder.")
                if entry.domain != domain:
                    raise InputError(f"{file}, line {row.line}: {row.path} is of another domain than its list.")
                listed.append(entry._replace(split=split))
    left_out = len(entries) - len({entry.path for entry in listed})
    notes = [f"split by the lists in {lists}"] + ([f"{left_out} images are in no list: left out"] if left_out else [])
    return listed, notes

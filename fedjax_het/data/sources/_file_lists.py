"""Data sets with file lists or tables: Mini-DomainNet, Tiny-ImageNet, Retina, COVID-FL and Camelyon17."""

from pathlib import Path

import numpy as np

from fedjax_het._internal.regular_files import read_text
from fedjax_het.data.dataset import Dataset
from fedjax_het.data.encoding import number_names, sort_naturally
from fedjax_het.data.sources._image_listing import (
    ImageEntry,
    check_files_exist,
    check_shared_classes,
    image_dataset,
    list_entries,
    list_image_files,
    list_subfolders,
    note_size,
    parse_count,
    read_csv,
    read_csv_columns,
    read_split_list,
)
from fedjax_het.data.sources._images import conform_images, read_image
from fedjax_het.data.sources._io_errors import report_read_errors, require_dataset, require_path
from fedjax_het.data.sources._npy import map_npy
from fedjax_het.data.splitting import draw_stratified
from fedjax_het.errors import InputError
from fedjax_het.validation import Count, validate_arguments

# ---- DomainNet -------------------------------------------------------------------------------------------------------
_DOMAINNET_URL = (
    "http://ai.bu.edu/M3SDA/ (the cleaned version; the lists of Mini-DomainNet: "
    "https://github.com/KaiyangZhou/Dassl.pytorch/blob/master/DATASETS.md)"
)


def mini_domainnet(path: str, lists: str = "splits_mini", size: int | None = None, cache: str | None = None) -> Dataset:
    """Read Mini-DomainNet or DomainNet: <domain>/<class>/<image>, with lists for training and testing.

    The lists are <lists>/<domain>_train.txt and <domain>_test.txt, with lines "<domain>/<class>/<file> <label>", labels
    from 0. Domains without lists are skipped (Dassl's Mini-DomainNet has four domains and 126 classes). The test lists
    are the published test split.

    Args:
        path: The folder of the domains and lists, or the parent of domainnet/.
        lists: The folder of the lists; "splits" for the full DomainNet.
        size: The side length to which images are resized; required, because image sizes differ.
        cache: The cache folder for decoded images, see `folders`.

    Raises:
        InputError: A domain has only one list, a line has no file, labels contradict the folders, or a class exists in
            a single domain.

    References:
        Peng et al., ICCV 2019. arXiv:1812.01754; Zhou et al., TIP 2021. arXiv:2003.07325
    """
    root = require_dataset(path, "DomainNet", _DOMAINNET_URL, lists, "domainnet")
    domains = [x.name.removesuffix("_train.txt") for x in list_entries(require_path(root / lists), "_train.txt")]
    if not domains:
        raise InputError(f"{root / lists} holds no <domain>_train.txt. They are published at {_DOMAINNET_URL}")
    names: dict[int, str] = {}
    entries = [entry for domain in domains for entry in _read_domain_lists(root, lists, domain, names)]
    check_shared_classes("DomainNet", entries)
    labels = range(max(names) + 1)
    missing = [label for label in labels if label not in names]
    return image_dataset(
        "mini_domainnet" if lists == "splits_mini" else "domainnet",
        entries,
        size=size,
        cache=cache,
        class_names=[names.get(label, f"class_{label}") for label in labels],
        notes=[f"split by the lists in {root / lists}", *([f"no list has labels {missing}"] if missing else [])],
    )


def _read_domain_lists(root: Path, lists: str, domain: str, names: dict[int, str]) -> list[ImageEntry]:
    """The entries of a domain; its label names are added to `names`."""
    entries, labels = [], {name: label for label, name in names.items()}
    for split in ("train", "test"):
        file = root / lists / f"{domain}_{split}.txt"
        for row in read_split_list(file, root):
            name, label = Path(row.path).parent.name, int(row.label)
            if not row.path.startswith(f"{domain}/"):
                raise InputError(f"{file}, line {row.line}: {row.path} is of another domain than its list.")
            if (names.setdefault(label, name), labels.setdefault(name, label)) != (name, label):
                raise InputError(
                    f"{file}, line {row.line}: label {label} for {name}, but elsewhere {label} is {names[label]} and "
                    f"{name} is {labels[name]}. Correct the lists."
                )
            entries.append(ImageEntry(str(root / row.path), name, domain, split))
    return entries


# ---- Tiny-ImageNet ---------------------------------------------------------------------------------------------------
_TINY_URL = "http://cs231n.stanford.edu/tiny-imagenet-200.zip"


@validate_arguments
def tiny_imagenet(path: str, size: Count | None = None, cache: str | None = None) -> Dataset:
    """Read Tiny-ImageNet, 200 classes of 64 x 64 images, in its published layout; val is used as the test split.

    train/<class>/images/<image>, val/images/<image> with val/val_annotations.txt, whose lines start with file and
    class, and wnids.txt with the classes in order. The images in test/ have no published labels and are skipped.

    Args:
        path: The folder tiny-imagenet-200, or its parent.
        size: The side length to which images are resized.
        cache: The cache folder for decoded images, see `folders`.

    Raises:
        InputError: A file is missing, or the class of an image is not in wnids.txt.
    """
    root = require_dataset(path, "Tiny-ImageNet", _TINY_URL, "wnids.txt", "tiny-imagenet-200")
    classes = read_text(root / "wnids.txt").split()
    entries = []
    for folder in list_subfolders(root / "train"):
        if folder.name not in classes:
            raise InputError(f"{folder} is of no class in wnids.txt. Remove it, or restore wnids.txt.")
        if not (files := list_image_files(folder / "images")):
            raise InputError(f"{folder} holds no images/ with images. Restore them from {_TINY_URL}")
        entries += [ImageEntry(str(file), folder.name, "all") for file in files]
    if not entries:
        raise InputError(f"{root} holds no train/<class>/images/. Tiny-ImageNet is published at {_TINY_URL}")
    listing, folder = root / "val" / "val_annotations.txt", root / "val" / "images"
    for row in read_split_list(listing, folder, r"(\S+)\s+(\S+).*"):
        if row.label not in classes:
            raise InputError(f"{listing}, line {row.line}: '{row.label}' is not a class in wnids.txt. Correct it.")
        entries.append(ImageEntry(str(folder / row.path), row.label, "all", "test"))
    notes = ["the test split is the published validation split", *note_size(entries, 110_000)]
    return image_dataset("tiny_imagenet", entries, size=size, cache=cache, class_names=classes, notes=notes)


# ---- Retina and COVID-FL, in the layout of the SSL-FL benchmark ------------------------------------------------------
_SSL_FL_URL = "https://github.com/rui-yan/SSL-FL (data/README.md)"


def retina(path: str, split: str = "5_clients/split_1", size: int | None = None, cache: str | None = None) -> Dataset:
    """Read Retina in the layout of the SSL-FL benchmark, 5 clients, 2 classes, images in .npy files.

    labels.csv has lines <file>,<label>; <split>/<client>.csv and test.csv have one file name per line; the files are
    in train/ and test/. Clients are domains. The test list is the published test split; its examples belong to no
    client and form the domain "test". Classes are named by number. Images are converted to color; .npy files may
    contain floats in 0..1 or 0..255, which are rounded to bytes; of two channels the first is used, of more than three
    the first three. Repeated lines of a list count once.

    Args:
        path: The folder Retina, or its parent.
        split: The folder with a list per client, "5_clients/split_1" to "5_clients/split_3".
        size: The side length to which images are resized.
        cache: The cache folder for decoded images, see `folders`.

    Raises:
        InputError: A line has no file or no label, a file is in the lists of two clients, or an array is not an image.

    References:
        Yan et al., IEEE TMI 2023. arXiv:2205.08576
    """
    return _read_ssl_fl("retina", "Retina", path, split, size, cache)


def covid_fl(
    path: str, split: str = "12_clients/split_real", size: int | None = None, cache: str | None = None
) -> Dataset:
    """Read COVID-FL, chest X-rays of 12 sites, 3 classes, JPEG and PNG files, in the same layout as `retina`.

    Args:
        path: The folder COVID-FL, or its parent.
        split: The folder with a list per site.
        size: The side length to which images are resized; required, because image sizes differ.
        cache: The cache folder for decoded images, see `folders`.

    Raises:
        InputError: As `retina`.

    References:
        Yan et al., IEEE TMI 2023. arXiv:2205.08576
    """
    return _read_ssl_fl("covid_fl", "COVID-FL", path, split, size, cache)


def _read_ssl_fl(name: str, title: str, path: str, split: str, size: int | None, cache: str | None) -> Dataset:
    root = require_dataset(path, title, _SSL_FL_URL)
    root = root / title if (root / title).is_dir() else root
    labels = {}
    for line, cells in read_csv(root / "labels.csv"):
        if len(cells) < 2:
            raise InputError(f"{root / 'labels.csv'}, line {line}: '{cells[0]}' is not '<file>,<label>'. Correct it.")
        labels[cells[0]] = str(parse_count(root / "labels.csv", line, "the label", cells[1]))
    listings = list_entries(require_path(root / split), ".csv") if (root / split).is_dir() else []
    if not listings:
        others = ", ".join(str(path.relative_to(root)) for path in sorted(root.glob("*_clients/*")) if path.is_dir())
        raise InputError(f"{root / split} holds no lists of clients. There are {others or 'none'} in {root}.")
    lists = {file.stem: file for file in listings}
    entries, notes = [], [f"clients by the lists in {root / split}"]
    for file, folder in [*((lists[client], "train") for client in sort_naturally(lists)), (root / "test.csv", "test")]:
        lines = [(line, cells[0]) for line, cells in read_csv(file)]
        check_files_exist(file, ((line, str(root / folder / name)) for line, name in lines))
        for line, name in lines:
            if name not in labels:
                raise InputError(
                    f"{file}, line {line}: labels.csv has no label for {name}. Add it, or delete the line."
                )
        files = dict.fromkeys(name for _, name in lines)
        entries += [ImageEntry(str(root / folder / name), labels[name], file.stem, folder) for name in files]
        if num_repeated := len(lines) - len(files):
            notes.append(f"{file.name} repeats {num_repeated} lines, which count once")
    largest = max(map(int, labels.values()), default=0)
    return image_dataset(
        name,
        entries,
        size=size,
        cache=cache,
        class_names=number_names(f"{root / 'labels.csv'}: labels", largest, len(labels)),
        notes=notes,
        read=_read_image_or_array,
    )


def _read_image_or_array(path: str, size: int | None, channels: int | None) -> np.ndarray:
    if not path.endswith(".npy"):
        return read_image(path, size, channels)
    with report_read_errors(Path(path)):
        array = map_npy(path)
    if array.ndim not in (2, 3) or array.dtype.kind not in "fiu" or 0 in array.shape:
        raise InputError(
            f"{path} holds {array.dtype} {array.shape}, not an image of numbers from 0. Download it again."
        )
    if array.ndim == 3:
        array = array[..., 0] if array.shape[2] < 3 else array[..., :3]
    if array.dtype != np.uint8:
        if not (np.isfinite(array).all() and array.min() >= 0 and array.max() <= 255):
            raise InputError(f"{path} has values outside 0..255. Scale its images to 0..1 or 0..255.")
        scale = 255.0 if array.dtype.kind == "f" and array.max() <= 1 else 1.0
        array = np.rint(array * scale).astype(np.uint8)
    return conform_images(array[None], size, channels)[0]


# ---- Camelyon17 ------------------------------------------------------------------------------------------------------
_CAMELYON17_URL = "https://wilds.stanford.edu/datasets/#camelyon17"
_CAMELYON17_COLUMNS = ("patient", "node", "x_coord", "y_coord", "tumor", "center", "split")
_CAMELYON17_CLASSES = ("normal", "tumor")
_CAMELYON17_VALID_FRACTION = 0.2


def camelyon17(path: str, size: int | None = None, cache: str | None = None) -> Dataset:
    """Read Camelyon17-WILDS, 455,954 lymph node patches of 96 x 96, normal or tumor: metadata.csv and patches/.

    Hospitals are domains, center_0 to center_4. Rows with split 1 are the test split. A fifth of the rows with split 0
    is the validation split, the rest is for training. The fifth is a fixed random sample, stratified by class: the
    table lists tumor patches before normal ones, so its last fifth contains no tumor.

    Args:
        path: The folder of metadata.csv, or the parent of camelyon17_v1.0/.
        size: The side length to which images are resized.
        cache: The cache folder for decoded images, see `folders`; the decoded patches take 12.6 GB.

    Raises:
        InputError: A column is missing, a value is out of range, or a row has no patch.

    References:
        Koh et al., ICML 2021. arXiv:2012.07421
    """
    root = require_dataset(path, "Camelyon17-WILDS", _CAMELYON17_URL, "metadata.csv", "camelyon17_v1.0")
    table = root / "metadata.csv"
    rows = [(line, _parse_patch(table, line, cells)) for line, cells in read_csv_columns(table, _CAMELYON17_COLUMNS)]
    check_files_exist(table, ((line, entry.path) for line, entry in rows))
    entries = [entry for _, entry in rows]
    return image_dataset(
        "camelyon17",
        _draw_validation(entries),
        size=size,
        cache=cache,
        class_names=_CAMELYON17_CLASSES,
        notes=note_size(entries, 455_954),
    )


def _parse_patch(table: Path, line: int, cells: list[str]) -> ImageEntry:
    patient, node, x, y, *numbers = cells
    named = zip(("tumor", "center", "split"), numbers, strict=True)
    tumor, center, split = (parse_count(table, line, field, text) for field, text in named)
    if tumor > 1 or split > 1:
        raise InputError(f"{table}, line {line}: tumor is {tumor} and split is {split}. Give 0 or 1.")
    slide = f"patient_{patient.zfill(3)}_node_{node}"
    patch = f"{table.parent}/patches/{slide}/patch_{slide}_x_{x}_y_{y}.png"
    return ImageEntry(patch, _CAMELYON17_CLASSES[tumor], f"center_{center}", "test" if split else "train")


def _draw_validation(entries: list[ImageEntry]) -> list[ImageEntry]:
    training = [i for i, entry in enumerate(entries) if entry.split == "train"]
    strata = np.unique([f"{entries[i].domain} {entries[i].label}" for i in training], return_inverse=True)[1]
    is_valid = draw_stratified(strata, _CAMELYON17_VALID_FRACTION, np.random.default_rng(0))
    result = list(entries)
    for i in np.array(training)[is_valid]:
        result[i] = entries[i]._replace(split="valid")
    return result

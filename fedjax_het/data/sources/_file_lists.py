"""Retina and COVID-FL in the layout of the SSL-FL benchmark: a list of files a client, and one test list for all."""

from pathlib import Path

import numpy as np

from fedjax_het.data import splitting
from fedjax_het.data.dataset import Dataset, number_names
from fedjax_het.data.sources._growable_npy import map_npy
from fedjax_het.data.sources._image_listing import (
    ImageEntry,
    check_files_exist,
    check_shared_classes,
    image_dataset,
    note_size,
    parse_count,
    read_csv,
    read_csv_columns,
    read_split_list,
    sort_naturally,
)
from fedjax_het.data.sources._images import conform_images, read_image
from fedjax_het.data.sources._io_errors import report_read_errors, require_dataset, require_path
from fedjax_het.errors import InputError

_SSL_FL_URL = "https://github.com/rui-yan/SSL-FL (data/README.md)"
_TEST_DOMAIN = "test"  # the domain of the common test list, which no client has


def retina(path: str, split: str = "5_clients/split_1", size: int | None = None, cache: str | None = None) -> Dataset:
    """Retina, 5 clients, 2 classes, images in .npy files; the folder is called Retina.

    split: the folder with a list for each client, "5_clients/split_1" to "5_clients/split_3".
    See `ssl_fl_dataset` for the rest.
    """
    return ssl_fl_dataset("retina", "Retina", path, split, size, cache)


def covid_fl(
    path: str, split: str = "12_clients/split_real", size: int | None = None, cache: str | None = None
) -> Dataset:
    """COVID-FL, chest X-rays of 12 sites, 3 classes, JPEG and PNG files; the folder is called COVID-FL.

    split: the folder with a list for each site. Sizes differ from image to image: give `size`.
    See `ssl_fl_dataset` for the rest.
    """
    return ssl_fl_dataset("covid_fl", "COVID-FL", path, split, size, cache)


def ssl_fl_dataset(name: str, title: str, path: str, split: str, size: int | None, cache: str | None) -> Dataset:
    """labels.csv (<file>,<label>), <split>/<client>.csv and test.csv (a file name a line), train/<file>, test/<file>.

    A client is a domain. The test list is the own test split; its examples belong to no client, so their domain is
    called "test". Classes are called by their number. Images are made colour; see `read_array` for .npy files.
    A line that a list repeats counts once. size, cache: see `folders`.
    Raises InputError for a line without its file or label, and for a file in the lists of two clients.
    Yan et al., IEEE TMI 2023. arXiv:2205.08576
    """
    root = require_dataset(path, title, _SSL_FL_URL)
    root = root / title if (root / title).is_dir() else root
    labels = _read_labels(root / "labels.csv")
    is_there = (root / split).is_dir()
    lists = {file.stem: file for file in require_path(root / split).glob("*.csv")} if is_there else {}
    if not lists:
        there = ", ".join(str(each.relative_to(root)) for each in sorted(root.glob("*_clients/*")) if each.is_dir())
        raise InputError(f"{root / split} holds no lists of clients. There are {there or 'none'} in {root}.")
    parts = [(client, "train", lists[client]) for client in sort_naturally(lists)] + [
        (_TEST_DOMAIN, "test", root / "test.csv")
    ]
    entries, notes = [], [f"clients by the lists in {root / split}"]
    for domain, folder, listed in parts:
        found, num_repeated = _read_client_list(root / folder, listed, labels)
        entries += [ImageEntry(str(root / folder / file), label, domain, folder) for file, label in found.items()]
        notes += [f"{listed.name} repeats {num_repeated} lines, which count once"] if num_repeated else []
    class_names = number_names(f"{root / 'labels.csv'}: labels", max(map(int, labels.values()), default=0), len(labels))
    return image_dataset(
        name,
        entries,
        size=size,
        channels=3,
        cache=cache,
        class_names=class_names,
        notes=notes,
        read=_read_image_or_array,
    )


def read_image_array(path: str) -> np.ndarray:
    """uint8 [height, width] or [height, width, 3] from an image in a .npy file.

    Floats in 0..1 are multiplied by 255, floats in 0..255 are not; both are rounded. Of more than three channels the
    first three are taken, of two the first. Raises InputError for other values and shapes.
    """
    with report_read_errors(Path(path)):
        array = map_npy(path)
    if array.ndim not in (2, 3) or array.dtype.kind not in "fiu" or 0 in array.shape:
        raise InputError(f"{path} holds {array.dtype} {array.shape}, not an image of numbers from 0. Fetch it again.")
    if array.ndim == 3:
        array = array[..., 0] if array.shape[2] < 3 else array[..., :3]
    if array.dtype == np.uint8:
        return array
    if not (np.isfinite(array).all() and array.min() >= 0 and array.max() <= 255):
        raise InputError(f"{path} has values outside 0..255. Scale its images to 0..1 or 0..255.")
    scale = 255.0 if array.dtype.kind == "f" and array.max() <= 1 else 1.0
    return np.rint(array * scale).astype(np.uint8)


def _read_image_or_array(path: str, size: int | None, channels: int | None) -> np.ndarray:
    if path.endswith(".npy"):
        return conform_images(read_image_array(path)[None], size, channels)[0]
    return read_image(path, size, channels)


def _read_labels(path: Path) -> dict[str, str]:
    """{file: its label} of labels.csv."""
    labels = {}
    for line, cells in read_csv(path):
        if len(cells) < 2:
            raise InputError(f"{path}, line {line}: '{cells[0]}' is not '<file>,<label>'. Mend the line.")
        labels[cells[0]] = str(parse_count(path, line, "the label", cells[1]))
    return labels


def _read_client_list(folder: Path, listed: Path, labels: dict[str, str]) -> tuple[dict[str, str], int]:
    """({file: label} in the order of the list, how many lines repeat one before them)."""
    lines = [(line, cells[0]) for line, cells in read_csv(listed)]
    check_files_exist(listed, ((line, str(folder / file)) for line, file in lines))
    for line, file in lines:
        if file not in labels:
            raise InputError(
                f"{listed}, line {line}: labels.csv has no label for {file}. Add it, or take out the line."
            )
    found = {file: labels[file] for _, file in lines}
    return found, len(lines) - len(found)


_CAMELYON17_URL = "https://wilds.stanford.edu/datasets/#camelyon17"
_CAMELYON17_FOLDER = "camelyon17_v1.0"
_CAMELYON17_COLUMNS = ("patient", "node", "x_coord", "y_coord", "tumor", "center", "split")
_CAMELYON17_CLASSES = ("normal", "tumor")
_CAMELYON17_VALID_FRACTION = 0.2


def camelyon17(path: str, size: int | None = None, cache: str | None = None) -> Dataset:
    """Camelyon17-WILDS, 455,954 patches of 96 x 96, normal or tumor: metadata.csv and patches/ in `path` or below
    camelyon17_v1.0/ in it.

    A hospital is a domain, center_0 to center_4. Rows of split 0 are its training list, of which a fifth is the
    validation split, and rows of split 1 its test split. The fifth is drawn, of both classes alike and always the
    same: the table lists tumor patches before normal ones, and its last fifth would hold no tumor.
    size: the side to resize to. cache: see `folders`; the decoded patches take 12.6 GB.
    Raises InputError for a column that is missing, values that cannot be, and a row without its patch.
    Koh et al., ICML 2021. arXiv:2012.07421
    """
    root = require_dataset(path, "Camelyon17-WILDS", _CAMELYON17_URL)
    table = next(
        (each / "metadata.csv" for each in (root, root / _CAMELYON17_FOLDER) if (each / "metadata.csv").is_file()), None
    )
    if table is None:
        raise InputError(
            f"{root} holds no metadata.csv, nor does {_CAMELYON17_FOLDER}/ in it. It is published at {_CAMELYON17_URL}"
        )
    lines, entries, patches = [], [], str(table.parent / "patches")
    for line, cells in read_csv_columns(table, _CAMELYON17_COLUMNS):
        lines.append(line)
        entries.append(_parse_patch(table, patches, line, cells))
    if not entries:
        raise InputError(f"{table} has no rows. Fetch it again from {_CAMELYON17_URL}")
    check_files_exist(table, zip(lines, (entry.path for entry in entries), strict=True))
    return image_dataset(
        "camelyon17",
        _draw_validation(entries),
        size=size,
        channels=3,
        cache=cache,
        class_names=_CAMELYON17_CLASSES,
        notes=note_size(entries, 455_954),
    )


def _parse_patch(table: Path, patches: str, line: int, cells: list[str]) -> ImageEntry:
    patient, node, x, y, *numbers = cells
    named = zip(("tumor", "center", "split"), numbers, strict=True)
    tumor, center, split = (parse_count(table, line, what, text) for what, text in named)
    if tumor > 1 or split > 1:
        raise InputError(f"{table}, line {line}: tumor is {tumor} and split is {split}, where 0 or 1 is known.")
    slide = f"patient_{patient.zfill(3)}_node_{node}"
    patch = f"{patches}/{slide}/patch_{slide}_x_{x}_y_{y}.png"
    return ImageEntry(patch, _CAMELYON17_CLASSES[tumor], f"center_{center}", "test" if split else "train")


def _draw_validation(entries: list[ImageEntry]) -> list[ImageEntry]:
    training = [i for i, entry in enumerate(entries) if entry.split == "train"]
    strata = np.unique([f"{entries[i].domain} {entries[i].label}" for i in training], return_inverse=True)[1]
    is_valid = splitting.draw_stratified(strata, _CAMELYON17_VALID_FRACTION, np.random.default_rng(0))
    result = list(entries)
    for i in np.array(training)[is_valid]:
        result[i] = entries[i]._replace(split="valid")
    return result


_DOMAINNET_URL = (
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
    place = require_dataset(path, "DomainNet", _DOMAINNET_URL)
    root = next((each for each in (place, place / "domainnet") if (each / lists).is_dir()), None)
    if root is None:
        raise InputError(
            f"{place} holds no folder {lists}, nor does its domainnet/. The lists are published at {_DOMAINNET_URL}"
        )
    domains = sorted(file.name.removesuffix("_train.txt") for file in require_path(root / lists).glob("*_train.txt"))
    if not domains:
        raise InputError(f"{root / lists} holds no <domain>_train.txt. The lists are published at {_DOMAINNET_URL}")
    names: dict[int, str] = {}
    entries = [entry for domain in domains for entry in _read_domain_lists(root, lists, domain, names)]
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


def _read_domain_lists(root: Path, lists: str, domain: str, names: dict[int, str]) -> list[ImageEntry]:
    """The entries of a domain; `names` learns what the labels are called."""
    entries, labels = [], {name: label for label, name in names.items()}
    for split in ("train", "test"):
        file = root / lists / f"{domain}_{split}.txt"
        for row in read_split_list(file, root):
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

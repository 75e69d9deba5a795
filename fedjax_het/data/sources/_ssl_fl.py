"""Retina and COVID-FL in the layout of the SSL-FL benchmark: a list of files a client, and one test list for all."""

from pathlib import Path

import numpy as np

from fedjax_het.data.dataset import Dataset, number_names
from fedjax_het.data.sources import _tables
from fedjax_het.data.sources._growable_npy import map_npy
from fedjax_het.data.sources._image_listing import ImageEntry, image_dataset, sort_naturally
from fedjax_het.data.sources._images import conform_images, read_image
from fedjax_het.data.sources._io_errors import reporting_read_errors, require_dataset, require_path
from fedjax_het.errors import InputError

_URL = "https://github.com/rui-yan/SSL-FL (data/README.md)"
_TEST = "test"  # the domain of the common test list, which no client has


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
    root = require_dataset(path, title, _URL)
    root = root / title if (root / title).is_dir() else root
    labels = _labels(root / "labels.csv")
    is_there = (root / split).is_dir()
    lists = {file.stem: file for file in require_path(root / split).glob("*.csv")} if is_there else {}
    if not lists:
        there = ", ".join(str(each.relative_to(root)) for each in sorted(root.glob("*_clients/*")) if each.is_dir())
        raise InputError(f"{root / split} holds no lists of clients. There are {there or 'none'} in {root}.")
    parts = [(client, "train", lists[client]) for client in sort_naturally(lists)] + [
        (_TEST, "test", root / "test.csv")
    ]
    entries, notes = [], [f"clients by the lists in {root / split}"]
    for domain, folder, listed in parts:
        found, num_repeated = _listed(root / folder, listed, labels)
        entries += [ImageEntry(str(root / folder / file), label, domain, folder) for file, label in found.items()]
        notes += [f"{listed.name} repeats {num_repeated} lines, which count once"] if num_repeated else []
    class_names = number_names(f"{root / 'labels.csv'}: labels", max(map(int, labels.values()), default=0), len(labels))
    return image_dataset(
        name, entries, size=size, channels=3, cache=cache, class_names=class_names, notes=notes, read=_read
    )


def read_array(path: str) -> np.ndarray:
    """uint8 [height, width] or [height, width, 3] from an image in a .npy file.

    Floats in 0..1 are multiplied by 255, floats in 0..255 are not; both are rounded. Of more than three channels the
    first three are taken, of two the first. Raises InputError for other values and shapes.
    """
    with reporting_read_errors(Path(path)):
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


def _read(path: str, size: int | None, channels: int | None) -> np.ndarray:
    if path.endswith(".npy"):
        return conform_images(read_array(path)[None], size, channels)[0]
    return read_image(path, size, channels)


def _labels(path: Path) -> dict[str, str]:
    """{file: its label} of labels.csv."""
    labels = {}
    for line, cells in _tables.read_rows(path):
        if len(cells) < 2:
            raise InputError(f"{path}, line {line}: '{cells[0]}' is not '<file>,<label>'. Mend the line.")
        labels[cells[0]] = str(_tables.parse_count(path, line, "the label", cells[1]))
    return labels


def _listed(folder: Path, listed: Path, labels: dict[str, str]) -> tuple[dict[str, str], int]:
    """({file: label} in the order of the list, how many lines repeat one before them)."""
    lines = [(line, cells[0]) for line, cells in _tables.read_rows(listed)]
    _tables.check_rows(listed, ((line, str(folder / file)) for line, file in lines))
    for line, file in lines:
        if file not in labels:
            raise InputError(
                f"{listed}, line {line}: labels.csv has no label for {file}. Add it, or take out the line."
            )
    found = {file: labels[file] for _, file in lines}
    return found, len(lines) - len(found)

"""Camelyon17 as WILDS distributes it: lymph node patches of five hospitals, in a table of what they are."""

from pathlib import Path

import numpy as np

from fedjax_het.data import rows
from fedjax_het.data.dataset import Dataset
from fedjax_het.data.sources import _tables
from fedjax_het.data.sources._image_listing import ImageEntry, image_dataset, note_size
from fedjax_het.data.sources._io_errors import require_dataset
from fedjax_het.errors import InputError

_URL = "https://wilds.stanford.edu/datasets/#camelyon17"
_FOLDER = "camelyon17_v1.0"
_COLUMNS = ("patient", "node", "x_coord", "y_coord", "tumor", "center", "split")
_CLASSES = ("normal", "tumor")
_VALID_FRACTION = 0.2


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
    root = require_dataset(path, "Camelyon17-WILDS", _URL)
    table = next((each / "metadata.csv" for each in (root, root / _FOLDER) if (each / "metadata.csv").is_file()), None)
    if table is None:
        raise InputError(f"{root} holds no metadata.csv, nor does {_FOLDER}/ in it. It is published at {_URL}")
    lines, entries, patches = [], [], str(table.parent / "patches")
    for line, cells in _tables.read_records(table, _COLUMNS):
        lines.append(line)
        entries.append(_entry(table, patches, line, cells))
    if not entries:
        raise InputError(f"{table} has no rows. Fetch it again from {_URL}")
    _tables.check_rows(table, zip(lines, (entry.path for entry in entries), strict=True))
    return image_dataset(
        "camelyon17",
        _with_validation(entries),
        size=size,
        channels=3,
        cache=cache,
        class_names=_CLASSES,
        notes=note_size(entries, 455_954),
    )


def _entry(table: Path, patches: str, line: int, cells: list[str]) -> ImageEntry:
    patient, node, x, y, *numbers = cells
    named = zip(("tumor", "center", "split"), numbers, strict=True)
    tumor, center, split = (_tables.parse_count(table, line, what, text) for what, text in named)
    if tumor > 1 or split > 1:
        raise InputError(f"{table}, line {line}: tumor is {tumor} and split is {split}, where 0 or 1 is known.")
    slide = f"patient_{patient.zfill(3)}_node_{node}"
    patch = f"{patches}/{slide}/patch_{slide}_x_{x}_y_{y}.png"
    return ImageEntry(patch, _CLASSES[tumor], f"center_{center}", "test" if split else "train")


def _with_validation(entries: list[ImageEntry]) -> list[ImageEntry]:
    training = [i for i, entry in enumerate(entries) if entry.split == "train"]
    strata = np.unique([f"{entries[i].domain} {entries[i].label}" for i in training], return_inverse=True)[1]
    is_valid = rows.draw_stratified(strata, _VALID_FRACTION, np.random.default_rng(0))
    result = list(entries)
    for i in np.array(training)[is_valid]:
        result[i] = entries[i]._replace(split="valid")
    return result

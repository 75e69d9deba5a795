"""Tables: .csv files, optionally of image files, and tables and data sets of Python libraries."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedjax_het.data.dataset import Dataset
from fedjax_het.data.encoding import encode_feature, list_some, read_names, to_array
from fedjax_het.data.sources._assembly import SPLITS, assemble_by_name
from fedjax_het.data.sources._column_files import read_parts
from fedjax_het.data.sources._columns import TableKind, find_roles, read_columns, read_targets, split_names
from fedjax_het.data.sources._image_listing import (
    ImageEntry,
    image_dataset,
    list_entries,
    list_image_files,
    list_subfolders,
)
from fedjax_het.data.sources._io_errors import require_path
from fedjax_het.errors import InputError, nearest, shorten

Columns = Mapping[str, Any]


class _Roles(NamedTuple):
    labels: list[str]
    domain: str | None
    split: str | None
    features: list[str]


def table(
    path: str,
    label: Sequence[str] | str | None = None,
    domain: str | None = None,
    split: str | None = None,
    features: Sequence[str] | str | None = None,
    size: int | None = None,
    channels: int | None = None,
    title: str | None = None,
    cache: str | None = None,
    kind: TableKind | None = None,
) -> Dataset:
    """Read a .csv file with a header, or a Parquet, Arrow, .tsv or JSON file, with one row per example: numeric and
    categorical inputs, or an image file.

    If most strings of a column are names of image files in the folder of the table (relative paths, or names with or
    without extension, at any depth), these are the inputs, and other columns are ignored. Otherwise inputs are encoded
    as in `convert`.

    Args:
        path: The file, or a folder with a single file; with several files named after splits (train.csv,
            mnist_test.csv); or with one file per domain, named after the domain.
        label: The column of labels, or several of tags or numbers, as names or comma-separated (default: a column named
            label, target, class or y).
        domain: The column of domains, such as clients (default: a column named domain, client, site or user).
        split: The column of splits (default: a column named split or subset; without one there is no published split).
        features: The columns of the inputs, as names or comma-separated (default: all other named columns).
        size: The side length to which images are resized, see `folders`.
        channels: 1 converts images to grayscale, 3 to color, see `folders`.
        title: The name of the data set (default: the name of the file or folder).
        cache: The cache folder for decoded images, see `folders`.
        kind: The kind of labels, as in `convert`.

    Raises:
        InputError: A column is missing or ambiguous, a row has no label, or as in `convert`.
    """
    place = require_path(path)
    name, columns = title or place.resolve().stem, _read_files(place)
    features = split_names(features) or None
    roles, notes = _assign_columns(name, columns, label, {"domains": domain, "split": split}, features)
    folder = place if place.is_dir() else place.parent
    files = _index_images(folder)
    named = [
        key for key in roles.features if files and 2 * sum(text in files for text in columns[key]) > len(columns[key])
    ]
    if len(named) > 1:
        raise InputError(f"{name}: the columns {', '.join(named)} name image files. Choose one: features='{named[0]}'.")
    if not named:
        if size is not None or channels is not None or cache is not None:
            raise InputError(f"{name}: size, channels and cache are for images, and no column names files in {folder}.")
        return _encode(name, columns, roles, None, notes, kind)
    labels, class_names, kind = read_targets(name, roles.labels, columns, kind, notes)
    domains = _read_column(name, columns, roles.domain, "all")
    splits = _read_column(name, columns, roles.split, "train")
    paths = [_find_image(name, row, text, files) for row, text in enumerate(columns[named[0]], start=1)]
    entries = [ImageEntry(path, "", *others) for path, *others in zip(paths, domains, splits, strict=True)]
    notes.append(f"images from column '{named[0]}'")
    options = {"size": size, "channels": channels, "cache": cache, "class_names": class_names, "notes": notes}
    return image_dataset(name, entries, labels=labels, kind=kind, **options)


def _read_files(place: Path) -> dict[str, list]:
    """The columns of a file; or of the files of a folder, with an additional column for split or domain."""
    files = list_entries(place, ".csv") if place.is_dir() else [place]
    if not files or (place.is_file() and place.suffix.lower() in (".parquet", ".arrow", ".tsv", ".json", ".jsonl")):
        parts, _ = read_parts(place)
        role = "split" if len({part.split for part in parts}) > 1 else "domain"
        return _join([(x.origin, getattr(x, role), x.columns) for x in parts], role if len(parts) > 1 else None)
    splits = [SPLITS.get(file.stem.lower().rpartition("_")[2]) for file in files]
    if len(files) > 1 and None in splits and any(splits):
        raise InputError(f"{place} holds {', '.join(file.name for file in files)}. Give the path of one of them.")
    role = None if len(files) == 1 else "split" if all(splits) else "domain"
    return _join(
        [(file, part or file.stem, read_columns(file)) for file, part in zip(files, splits, strict=True)], role
    )


def _join(parts: Sequence[tuple[object, str, Columns]], role: str | None) -> dict[str, list]:
    """Concatenate the columns of (origin, part, columns); the column `role` holds the part of every row."""
    joined: dict[str, list] = {key: [] for key in parts[0][2]} | ({role: []} if role else {})
    for origin, part, columns in parts:
        own = {**columns, role: [part] * len(next(iter(columns.values()), []))}
        if missing := [key for key in joined if key not in own]:
            raise InputError(
                f"{origin} has no column '{missing[0]}', as {parts[0][0]} has. {nearest(missing[0], columns)}"
            )
        for key, values in joined.items():
            values += own[key]
    return joined


def _index_images(folder: Path) -> dict[str, set[str]]:
    """The image files below a folder, by relative path and by name, each with and without extension."""
    files: dict[str, set[str]] = {}
    folders = [folder]
    while folders:
        inside = folders.pop()
        folders += list_subfolders(inside)
        for file in list_image_files(inside):
            relative = file.relative_to(folder)
            for key in {relative.as_posix(), relative.with_suffix("").as_posix(), file.name, file.stem}:
                files.setdefault(key, set()).add(str(file))
    return files


def _find_image(name: str, row: int, text: str, files: Mapping[str, set[str]]) -> str:
    found = sorted(files.get(text, ()))
    if len(found) == 1:
        return found[0]
    if found:
        raise InputError(f"{name}, row {row}: '{text}' may be {found[0]} or {found[1]}. Write paths in the table.")
    raise InputError(f"{name}, row {row}: no image file is called '{text}'. Restore the file, or delete the row.")


def convert(
    examples: Any,
    label: Sequence[str] | str | None = None,
    domain: str | None = None,
    split: str | None = None,
    features: Sequence[str] | None = None,
    name: str = "data",
    kind: TableKind | None = None,
) -> Dataset:
    """Convert a table or data set of another library, or an object with the same interface:

    - A table of columns: a pandas DataFrame, a Hugging Face `datasets.Dataset`, an Arrow table, or a dict of lists.
      Inputs are one column of images or arrays, or the other columns as features.
    - A PyTorch `Dataset`: it has a length, and examples[i] is (input, label) or a dict. Its transforms are applied
      once.
    - A dict of these by split, such as a `DatasetDict`: {"train": ..., "test": ...}.

    Features become float32 [n, feature]: numbers unchanged, string columns one-hot. Missing numbers become the mean;
    missing and unknown categories have no indicator. Means and categories are those of the training rows. Images with
    the channel axis first are transposed. Notes report the interpretation.

    Args:
        examples: The examples; all are read into memory.
        label: The column of labels, or several of tags or numbers (default: a column named label, target, class or y).
        domain: The column of domains, such as clients (default: a column named domain, client, site or user).
        split: The column of splits (default: a column named split or subset; without one there is no published split).
        features: The columns of the inputs (default: all others).
        name: The name of the data set.
        kind: The kind of labels: "classes"; "ranks", in natural order; "numbers"; or "tags", columns of 0, 1 and -1 or
            missing for unknown ones. None: one column holds classes, unless it has more than 20 different numbers of
            which some are not whole; several hold tags if their values allow it, otherwise numbers. A note says which.

    Returns:
        The data set. Class names come from the library if available, otherwise from the labels, in natural order.

    Raises:
        InputError: A column is missing or ambiguous, a label is missing, a string column has about as many categories
            as rows, or `assemble` rejects the arrays.
    """
    parts, role = {"": examples}, None
    if isinstance(examples, Mapping) and any(str(key).lower() in SPLITS for key in examples):
        parts, role = dict(examples), "split"
    columns = _join([(f"{name}: {key}", key, _read_columns(name, part)) for key, part in parts.items()], role)
    split = split or role
    roles, notes = _assign_columns(name, columns, label, {"domains": domain, "split": split}, features)
    class_names = _find_class_names(next(iter(parts.values())), roles.labels[0])
    return _encode(name, columns, roles, class_names, notes, kind)


def _read_columns(name: str, examples: Any) -> Columns:
    keys = getattr(examples, "column_names", None)
    keys = getattr(examples, "columns", None) if keys is None else keys
    if keys is not None:
        return {
            str(key): list(np.asarray(examples[key]) if hasattr(examples, "iloc") else examples[key]) for key in keys
        }
    if isinstance(examples, Mapping):
        return {str(key): list(values) for key, values in examples.items()}
    if not (hasattr(examples, "__len__") and hasattr(examples, "__getitem__")):
        raise InputError(f"{name}: a {type(examples).__name__} has no length and examples[i]. Read it into a list.")
    items = [examples[i] for i in range(len(examples))]
    if items and all(isinstance(item, Mapping) for item in items):
        return {str(key): [item[key] for item in items] for key in items[0]}
    if not items or any(not isinstance(item, tuple | list) or len(item) != 2 for item in items):
        raise InputError(
            f"{name}: expected examples[i] to be (input, label), got {shorten(items[0] if items else [])}."
        )
    return {"images": [item[0] for item in items], "labels": [item[1] for item in items]}


def _find_class_names(examples: Any, label: str) -> Sequence[str] | None:
    """The class names stored by `datasets` and torchvision."""
    features = getattr(examples, "features", None)
    feature = features.get(label) if isinstance(features, Mapping) else None
    return getattr(feature, "names", None) or getattr(examples, "classes", None)


def _assign_columns(
    name: str,
    columns: Columns,
    label: Sequence[str] | str | None,
    others: Mapping[str, str | None],
    features: Sequence[str] | None,
) -> tuple[_Roles, list[str]]:
    """Find the columns of labels, "domains" and "split" that are not given, with a note."""
    labels = split_names(label)
    given = {"labels": labels[0] if labels else None, **others}
    chosen, notes = find_roles(name, columns, given, [*(features or []), *labels[1:]])
    if chosen["labels"] is None:
        raise InputError(f"{name}: no column is called label. Choose one, label='...': {', '.join(columns)}.")
    labels = labels or [chosen["labels"]]
    features = list(features) if features else [key for key in columns if key not in (*chosen.values(), *labels)]
    if not features:
        raise InputError(f"{name} has no columns for inputs: {', '.join(columns)}.")
    return _Roles(labels, chosen["domains"], chosen["split"], features), notes


def _read_column(name: str, columns: Columns, key: str | None, default: str = "") -> list[str]:
    if key is None:
        return [default] * len(next(iter(columns.values())))
    return read_names(f"{name}: column '{key}'", columns[key])


def _encode(
    name: str,
    columns: Columns,
    roles: _Roles,
    class_names: Sequence[str] | None,
    notes: Sequence[str],
    kind: TableKind | None,
) -> Dataset:
    notes = list(notes)
    domains = _read_column(name, columns, roles.domain, "all")
    splits = _read_column(name, columns, roles.split, "train")
    labels: Any = columns[roles.labels[0]]
    if class_names is None and len(labels) and np.ndim(labels[0]) == 0:
        labels, class_names, kind = read_targets(name, roles.labels, columns, kind, notes)
    else:
        labels = to_array(f"{name}: labels", [np.asarray(label) for label in labels])
    arrays = [key for key in roles.features if len(labels) and np.ndim(columns[key][0])]
    if len(arrays) > 1:
        raise InputError(f"{name}: the columns {', '.join(arrays)} hold arrays. Choose one, features=['{arrays[0]}'].")
    if arrays:
        if unread := [key for key in roles.features if key not in arrays]:
            notes.append(f"inputs from column '{arrays[0]}'; not read: {list_some(unread)}")
        inputs = to_array(f"{name}: inputs", [np.asarray(value) for value in columns[arrays[0]]])
        if inputs.ndim == 4 and inputs.shape[1] in (1, 3) and inputs.shape[3] not in (1, 3):
            notes.append(f"images of shape {inputs.shape[1:]} have the channel axis first: it becomes the last")
            inputs = np.ascontiguousarray(np.moveaxis(inputs, 1, -1))
        elif inputs.ndim == 2 and inputs.dtype.kind in "iu":
            notes.append("inputs that are lists of integers are tokens")
            inputs = inputs.astype(np.int32)
    else:
        is_train = np.array([SPLITS.get(word.lower()) == "train" for word in splits], bool)
        features = [encode_feature(name, key, columns[key], is_train, notes) for key in roles.features]
        widths = [part.shape[1] for part in features]
        shown = [f"{key} ({num})" if num > 1 else key for key, num in zip(roles.features, widths, strict=True)]
        notes.append(f"features: {list_some(shown)}")
        inputs = np.concatenate(features, axis=1, dtype=np.float32)
    fields = {"domains": domains, "class_names": class_names, "notes": notes, "kind": kind}
    return assemble_by_name(name, inputs, labels, splits=splits, **fields)

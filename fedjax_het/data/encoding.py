"""Encoding of labels, domains and features as numbers."""

import contextlib
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from fedjax_het.errors import InputError, nearest, shorten

_MAX_UNNAMED = 1 << 16  # classes or domains
_MISSING = {"", "?", "NA", "N/A", "NaN", "nan", "NaT", "None", "null", "<NA>"}
_MAX_CATEGORIES = 20  # more count as names if they exceed half of the rows
_MAX_LISTED = 8  # names in a note


def to_array(field: str, values: Any) -> np.ndarray:
    """Convert lists, tensors and arrays; memory-mapped arrays stay memory-mapped."""
    try:
        return np.asanyarray(values)
    except (ValueError, TypeError) as error:
        raise InputError(f"{field} cannot become one array: {error}. Give all examples the same shape.") from error


def index_names(
    field: str, values: Any, names: Sequence[object] | None, sort: Callable[[Iterable[str]], list[str]] = sorted
) -> tuple[np.ndarray, Sequence[object] | None]:
    """Convert classes or domains to indices.

    Args:
        field: The name of the values in messages.
        values: Integers of any shape; or [n] strings or booleans.
        names: The name of each index; None: strings and booleans are their own names.
        sort: The order of these names.

    Returns:
        (int32, or masks as uint8; the names, for integers as given)

    Raises:
        InputError: The values are neither integers nor strings, or a string is not among the names.
    """
    values = to_array(field, values)
    values = values.astype(str) if values.dtype.kind in "bS" else values
    if values.dtype.kind not in "UO":
        return _to_integers(field, values), names
    texts = values.tolist()
    if (other := next((i for i, text in enumerate(texts) if not isinstance(text, str)), None)) is not None:
        raise InputError(f"{field}[{other}] is {shorten(texts[other])}. Give each example one text, or one integer.")
    names = sort(set(texts)) if names is None else list(names)
    places = {name: i for i, name in enumerate(names)}
    if (unknown := next((text for text in texts if text not in places), None)) is not None:
        raise InputError(f"{field} hold '{unknown}', which is not among the names. {nearest(unknown, map(str, names))}")
    return np.array([places[text] for text in texts], np.int32), names


def sort_naturally(names: Iterable[str]) -> list[str]:
    """Sort names in natural order: client_2 before client_10."""

    def parts(name: str) -> list[tuple[bool, int, str]]:
        return [(not x.isdecimal(), int(x) if x.isdecimal() else 0, x) for x in re.split(r"(\d+)", name)]

    return sorted(names, key=parts)


def number_names(field: str, largest: int, num_examples: int, prefix: str = "") -> list[str]:
    """Name classes or domains by number, unless there are far more of them than examples."""
    if largest >= max(num_examples, _MAX_UNNAMED):
        raise InputError(
            f"{field} go up to {shorten(largest)}, for {num_examples} examples. Number them from 0, or name them all."
        )
    return [f"{prefix}{number}" for number in range(largest + 1)]


def _to_integers(field: str, values: np.ndarray) -> np.ndarray:
    """Labels or domains as int32; masks as uint8 if their values fit."""
    if values.dtype.kind not in "iu":
        raise InputError(
            f"{field} are {values.dtype}, not integers or texts. Give each class or domain its index, from 0."
        )
    limits = np.iinfo(np.int32)
    if values.size and not limits.min <= int(values.min()) <= int(values.max()) <= limits.max:
        place = np.argwhere((values < limits.min) | (values > limits.max))[0].tolist()
        raise InputError(f"{field}{place} is {int(values[tuple(place)])}. Give each class or domain its index, from 0.")
    is_small = values.ndim > 2 and values.size and values.min() >= 0 and values.max() <= 255
    return values.astype(np.uint8 if is_small else np.int32, copy=False)


def read_names(field: str, values: Sequence[Any]) -> list[str]:
    """Labels, domains or splits by name; missing values raise an error."""
    items = [np.asarray(value).item() for value in values]
    for row, item in enumerate(items, start=1):
        if str(item) in _MISSING:
            raise InputError(f"{field} has no value in row {row}. Fill it, or delete the row.")
    return [str(int(item) if isinstance(item, float) and item.is_integer() else item) for item in items]


def encode_feature(field: str, key: str, values: Any, is_train: np.ndarray, notes: list[str]) -> np.ndarray:
    """[n, 1] numbers, or [n, category] indicators; missing values are reported in `notes`."""
    parsed = parse_column(values)
    if parsed.dtype.kind == "f":
        is_missing = np.isnan(parsed)
        if not (known := parsed[is_train & ~is_missing]).size:
            raise InputError(f"{field}: column '{key}' has no value in any training row. Leave it out of features.")
        if is_missing.any():
            notes.append(f"{key}: {is_missing.sum()} missing values become the mean of the training rows")
        return np.where(is_missing, known.mean(), parsed)[:, None]
    categories = sorted({value for value in parsed[is_train] if value is not None})
    if not categories or len(categories) > max(_MAX_CATEGORIES, is_train.sum() / 2):
        raise InputError(
            f"{field}: column '{key}' has {len(categories)} different texts in {is_train.sum()} training rows. Leave "
            "it out of features."
        )
    indicators = np.stack([parsed == category for category in categories], axis=1)
    for kind, is_kind in (("missing", parsed == None), ("unknown", ~indicators.any(axis=1) & (parsed != None))):  # noqa: E711
        if is_kind.any():
            notes.append(f"{key}: {is_kind.sum()} {kind} categories have no indicator")
    return indicators


def list_some(names: Sequence[str]) -> str:
    """Format names for a note; long lists show the first names and the last."""
    return ", ".join(names if len(names) <= _MAX_LISTED else [*names[: _MAX_LISTED - 1], "...", names[-1]])


def note_names(names: Sequence[str], kind: str) -> list[str]:
    """A note with the number of names and some of them; no note without names."""
    return [f"{len(names)} {kind}: {list_some(names)}"] if names else []


def parse_column(values: Any) -> np.ndarray:
    """Read a column as [n] float64 or [n] strings, with NaN or None for missing values."""
    array = np.asarray(values)
    with contextlib.suppress(ValueError):
        if array.dtype.kind in "biufU":
            return array.astype(np.float64)
    texts = [None if str(value) in _MISSING else str(value) for value in array.tolist()]
    try:
        return np.array([np.nan if text is None else float(text) for text in texts])
    except ValueError:
        return np.array(texts, object)

"""Labels and domains as indices into their names."""

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from fedjax_het.errors import InputError, nearest, shorten

_MAX_UNNAMED = 1 << 16  # classes or domains


def to_array(what: str, values: Any) -> np.ndarray:
    """Convert lists, tensors and arrays; memory-mapped arrays stay memory-mapped."""
    try:
        return np.asanyarray(values)
    except (ValueError, TypeError) as error:
        raise InputError(f"{what} cannot become one array: {error}. Give all examples the same shape.") from error


def index_names(
    what: str, values: Any, names: Sequence[object] | None, sort: Callable[[Iterable[str]], list[str]] = sorted
) -> tuple[np.ndarray, Sequence[object] | None]:
    """Convert classes or domains to indices.

    Args:
        what: The name of the values in messages.
        values: Integers of any shape; or [n] texts or booleans.
        names: The name of each index; None: texts and booleans name themselves.
        sort: The order of these names.

    Returns:
        (int32, or masks as uint8; the names, which for integers are as given)

    Raises:
        InputError: The values are neither integers nor texts, or a text is not among the names.
    """
    values = to_array(what, values)
    values = values.astype(str) if values.dtype.kind in "bS" else values
    if values.dtype.kind not in "UO":
        return _to_integers(what, values), names
    texts = values.tolist()
    if (other := next((i for i, text in enumerate(texts) if not isinstance(text, str)), None)) is not None:
        raise InputError(f"{what}[{other}] is {shorten(texts[other])}. Give each example one text, or one integer.")
    names = sort(set(texts)) if names is None else list(names)
    places = {name: i for i, name in enumerate(names)}
    if (unknown := next((text for text in texts if text not in places), None)) is not None:
        raise InputError(f"{what} hold '{unknown}', which is not among the names. {nearest(unknown, map(str, names))}")
    return np.array([places[text] for text in texts], np.int32), names


def sort_naturally(names: Iterable[str]) -> list[str]:
    """Sort names, with the numbers in them as numbers: client_2 before client_10."""

    def parts(name: str) -> list[tuple[bool, int, str]]:
        return [(not x.isdecimal(), int(x) if x.isdecimal() else 0, x) for x in re.split(r"(\d+)", name)]

    return sorted(names, key=parts)


def decode_one_hot(name: str, labels: np.ndarray) -> np.ndarray:
    """Convert [n, class], a single 1 per row, to [n]."""
    if labels.dtype.kind in "biuf" and ((labels == 0) | (labels == 1)).all() and (labels.sum(axis=1) == 1).all():
        return labels.argmax(axis=1)
    raise InputError(
        f"{name}: labels of shape {labels.shape} are not one-hot, a single 1 per row. Several labels per example are "
        "not supported: give one class each, [n]."
    )


def number_names(what: str, largest: int, num_examples: int, prefix: str = "") -> list[str]:
    """Name classes or domains by their numbers, unless there are far more of them than examples."""
    if largest >= max(num_examples, _MAX_UNNAMED):
        raise InputError(
            f"{what} go up to {shorten(largest)}, for {num_examples} examples. Number them from 0, or name them all."
        )
    return [f"{prefix}{number}" for number in range(largest + 1)]


def _to_integers(what: str, values: np.ndarray) -> np.ndarray:
    """Labels or domains as int32; masks as uint8 where that holds their values."""
    if values.dtype.kind not in "iu":
        raise InputError(
            f"{what} are {values.dtype}, not integers or texts. Give each class or domain its index, from 0."
        )
    limits = np.iinfo(np.int32)
    if values.size and not limits.min <= int(values.min()) <= int(values.max()) <= limits.max:
        place = np.argwhere((values < limits.min) | (values > limits.max))[0].tolist()
        raise InputError(f"{what}{place} is {int(values[tuple(place)])}. Give each class or domain its index, from 0.")
    is_small = values.ndim > 2 and values.size and values.min() >= 0 and values.max() <= 255
    return values.astype(np.uint8 if is_small else np.int32, copy=False)

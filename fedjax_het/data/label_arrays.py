"""Arrays of labels: their kind, their stored form, and their counts."""

from collections.abc import Callable, Sequence

import numpy as np

from fedjax_het.data.encoding import index_names
from fedjax_het.errors import InputError
from fedjax_het.labels import PADDING, KindName, find_kind

Names = Sequence[object] | None
_MAX_RANKS = 127


def encode_labels(
    name: str, labels: np.ndarray, class_names: Names, kind: KindName | None, *, may_be_sequences: bool
) -> tuple[np.ndarray, Names, list[str]]:
    """Convert labels to the stored form of their kind, see `Dataset`.

    Args:
        name: The name of the data set, for messages.
        labels: The labels, [n, ...].
        class_names: The names of classes, tags, ranks or targets, if they are known.
        kind: The kind; None: it follows from shape and values. Ranks must be stated.
        may_be_sequences: Whether labels [n, length] may be those of positions.

    Returns:
        (The labels, their names, which may still be None for classes, notes.)

    Raises:
        InputError: The labels do not have the kind, or it is not clear.
    """
    notes: list[str] = []
    if kind is None and labels.ndim == 2 and not may_be_sequences:
        if _are_one_hot(labels):
            class_names = range(labels.shape[1]) if class_names is None else class_names
            return labels.argmax(axis=1).astype(np.int32), class_names, [f"one-hot labels of shape {labels.shape}"]
        kind = _infer_kind(name, labels)
        notes.append(f"labels of shape {labels.shape} are read as {kind}")
    elif kind is None and labels.ndim == 1 and labels.dtype.kind == "f":
        kind = "times" if labels.dtype == np.float32 and class_names is not None else _infer_kind(name, labels)
    if kind in _ENCODERS:
        return *_ENCODERS[kind](name, labels, class_names), notes
    labels, class_names = index_names(f"{name}: labels", labels, class_names)
    is_named = len(class_names or ()) > 255
    if labels.ndim > 2 and not is_named and labels.max(initial=0) == 255 and np.isin(labels, (0, 255)).all():
        labels = (labels > 0).astype(np.uint8)
        notes.append("masks of 0 and 255 are read as 0 and 1")
    return labels, class_names, notes


def _are_one_hot(labels: np.ndarray) -> bool:
    is_binary = labels.dtype.kind in "biuf" and ((labels == 0) | (labels == 1)).all()
    return bool(is_binary and (labels.sum(axis=1) == 1).all())


def _infer_kind(name: str, labels: np.ndarray) -> KindName:
    """The kind of several labels per example, or of real numbers."""
    if labels.ndim == 2 and labels.dtype.kind in "biuf" and np.isin(labels, (PADDING, 0, 1)).all():
        return "tags"
    if labels.dtype.kind == "f" and not (labels == np.round(labels)).all():
        return "numbers"
    if labels.ndim == 1:
        raise InputError(
            f"{name}: labels are {labels.dtype}, not integers or texts. Give classes as integers, or say what they "
            "are: kind='numbers'."
        )
    raise InputError(
        f"{name}: labels of shape {labels.shape} are not one-hot, a single 1 per row, nor tags of 0, 1 and -1. Give "
        "one class each, [n], or say what they are: kind='numbers'."
    )


def _encode_tags(name: str, labels: np.ndarray, class_names: Names) -> tuple[np.ndarray, Names]:
    if labels.ndim != 2 or labels.dtype.kind not in "biuf":
        raise InputError(f"{name}: tags are {labels.dtype} {labels.shape}. Give [n, tag], 0 or 1, and -1 for unknown.")
    labels = np.where(np.isnan(labels), PADDING, labels) if labels.dtype.kind == "f" else labels.astype(np.int64)
    if not (is_tag := np.isin(labels, (PADDING, 0, 1))).all():
        place = np.argwhere(~is_tag)[0].tolist()
        raise InputError(f"{name}: labels{place} is {labels[tuple(place)]}. Give tags 0 or 1, and -1 for unknown.")
    return labels.astype(np.int8), _name_columns(labels, class_names, "tag")


def _encode_numbers(name: str, labels: np.ndarray, class_names: Names) -> tuple[np.ndarray, Names]:
    if labels.ndim not in (1, 2) or labels.dtype.kind not in "biuf":
        raise InputError(f"{name}: labels that are numbers are {labels.dtype} {labels.shape}. Give [n] or [n, target].")
    labels = labels.reshape(len(labels), -1)
    labels = labels if labels.dtype == np.float32 else labels.astype(np.float64)
    return labels, _name_columns(labels, class_names, "target")


def _encode_ranks(name: str, labels: np.ndarray, class_names: Names) -> tuple[np.ndarray, Names]:
    if labels.dtype.kind in "UO" and class_names is None:
        raise InputError(f"{name}: ranks are texts without an order. Give class_names from the lowest to the highest.")
    ranks, class_names = index_names(f"{name}: ranks", labels, class_names)
    if ranks.ndim != 1 or ranks.min(initial=0) < 0 or ranks.max(initial=0) >= _MAX_RANKS:
        raise InputError(f"{name}: ranks are {labels.dtype} {labels.shape}. Give [n], from 0 to {_MAX_RANKS - 1}.")
    return ranks.astype(np.int8), class_names


def _encode_times(name: str, labels: np.ndarray, class_names: Names) -> tuple[np.ndarray, Names]:
    return labels.astype(np.float32, copy=False), ("no event", "event") if class_names is None else class_names


_ENCODERS: dict[KindName, Callable[[str, np.ndarray, Names], tuple[np.ndarray, Names]]] = {
    "tags": _encode_tags,
    "numbers": _encode_numbers,
    "ranks": _encode_ranks,
    "times": _encode_times,
}


def _name_columns(labels: np.ndarray, class_names: Names, noun: str) -> Names:
    if class_names is not None:
        return class_names
    return [noun] if labels.shape[1] == 1 else [f"{noun}_{number}" for number in range(labels.shape[1])]


def count_labels(labels: np.ndarray, num_classes: int) -> np.ndarray:
    """[class] int64: the number of labels of each class or rank, of events, of examples with a tag, or of numbers."""
    kind = find_kind(labels).name
    if kind == "numbers":
        return np.full(num_classes, len(labels), np.int64)
    if kind == "tags":
        return (labels > 0).sum(axis=0, dtype=np.int64)
    values = (labels > 0 if kind == "times" else labels).reshape(-1)
    return np.bincount(values[values >= 0], minlength=num_classes)

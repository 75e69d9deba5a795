"""Data sets from parts with named splits and domains."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from fedjax_het.data.assembly import assemble
from fedjax_het.data.dataset import Dataset
from fedjax_het.data.encoding import note_names
from fedjax_het.data.sources._images import conform_images, resize_mask
from fedjax_het.errors import InputError, nearest

SPLITS = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("valid", "val", "validation", "crossval", "dev"), "valid"),
    **dict.fromkeys(("test", "testing"), "test"),
}
"""Names of splits in folders and lists of data sets -> "train", "valid" or "test"."""


class Part(NamedTuple):
    """Some examples of a data set, such as those of a file."""

    origin: object  # the file or array, for messages
    inputs: np.ndarray
    labels: np.ndarray
    splits: str | Sequence[str] = "train"  # of all examples, or [n]
    domains: str | Sequence[str] | np.ndarray = "all"  # of all examples, or [n] names or integers


_FORMS: dict[str, Callable[[Part], object]] = {
    "the shape of an example": lambda part: part.inputs.shape[1:],
    "the type of an example": lambda part: part.inputs.dtype,
    "the shape of a label": lambda part: part.labels.shape[1:],
}


def assemble_parts(
    name: str, parts: Sequence[Part], size: int | None = None, channels: int | None = None, **fields: Any
) -> Dataset:
    """Concatenate parts of the same form, after resizing images and masks and converting the channels."""
    parts = [part._replace(inputs=conform_images(part.inputs, size, channels)) for part in parts]
    if size is not None and parts[0].labels.ndim == 3:
        parts = [part._replace(labels=np.stack([resize_mask(mask, size) for mask in part.labels])) for part in parts]
    for field, form in _FORMS.items():
        for part in parts:
            check_agreement(field, parts[0].origin, form(parts[0]), part.origin, form(part))
    counts = [len(part.inputs) for part in parts]
    splits, domains = (
        [[value] * num if isinstance(value, str) else value for num, value in zip(counts, values, strict=True)]
        for values in ([part.splits for part in parts], [part.domains for part in parts])
    )
    return assemble_by_name(
        name,
        _concatenate([part.inputs for part in parts]),
        _concatenate([part.labels for part in parts]),
        splits=[split for values in splits for split in values],
        domains=_concatenate(domains),
        **fields,
    )


def _concatenate(arrays: Sequence[Any]) -> Any:
    return arrays[0] if len(arrays) == 1 else np.concatenate([np.atleast_1d(array) for array in arrays])


def check_agreement(field: str, first: object, first_value: object, second: object, second_value: object) -> None:
    """Raise InputError unless the values of two files or arrays are equal."""
    if first_value != second_value:
        raise InputError(
            f"{field} differs: {first_value} in {first}, {second_value} in {second}. Bring them to one form (images: "
            "give size and channels), or load them separately."
        )


def assemble_by_name(name: str, inputs: np.ndarray, labels: Any, *, splits: Iterable[str], **fields: Any) -> Dataset:
    """`assemble` a data set given the split name of every example, in any spelling of `SPLITS`."""
    splits = [split.lower() for split in splits]
    if (unknown := next((split for split in splits if split not in SPLITS), None)) is not None:
        raise InputError(f"{name}: no split is called '{unknown}'. {nearest(unknown, SPLITS)}")
    is_valid, is_test = (np.array([SPLITS[split] == part for split in splits], bool) for part in ("valid", "test"))
    return assemble(name, inputs, labels, is_valid=is_valid, is_test=is_test, **fields)


def find_large_domains(name: str, counts: Mapping[str, int], min_examples: int) -> tuple[set[str], list[str]]:
    """(the domains with at least `min_examples` examples and at least one, notes)."""
    min_examples = max(1, min_examples)
    small = [domain for domain, count in counts.items() if count < min_examples]
    if len(small) == len(counts):
        raise InputError(f"{name}: no domain has {min_examples} examples. Give a smaller min_examples or other files.")
    return set(counts) - set(small), note_names(small, f"domains of fewer than {min_examples} examples are skipped")

"""Data sets: examples with labels, domains and published splits."""

from collections import Counter
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from fedjax_het.data.label_arrays import count_labels
from fedjax_het.data.units import Units
from fedjax_het.errors import InputError
from fedjax_het.labels import PADDING, Kind, are_tokens, find_kind

_CHUNK_BYTES = 1 << 28  # bytes of inputs checked at a time


@dataclass(frozen=True, eq=False)
class Dataset:
    """All examples of a data set, in the order of its source.

    The arrays may be memory-mapped. They are validated on construction.

    Args:
        name: The name of the data set.
        inputs: uint8 images [n, height, width, channel], float32 arrays [n, ...], or token sequences [n, length] of
            int8, int16 or int32, with -1 for padding.
        labels: Classes [n] int32; segmentation masks [n, height, width] uint8, the class of each pixel; label sequences
            [n, length] int32, the class of each position, -1 for padding; survival times [n] float32, see
            `fedjax_het.labels`, with classes (no event, event); tags [n, tag] int8, 0, 1 or -1 for unknown; ranks [n]
            int8, from 0; or numbers [n, target], float32 or float64.
        class_names: The name of each class, tag, rank or target.
        domains: [n] int32, the domain (site, style, hospital) of each example.
        domain_names: The name of each domain.
        is_valid: [n] bool, the published validation split.
        is_test: [n] bool, the published test split.
        notes: Notes of the source on the files it read, one sentence each.
        vocabulary: The number of tokens of the tokenizer; None if inputs are not tokens, or this is not known.
        units: The units of labels that are numbers in standardised form; None if they are in their units.

    Raises:
        InputError: There are no examples, arrays differ in length, labels or domains are out of range, inputs are not
            finite, tokens are less than -1 or not in the vocabulary, images have no channel axis or have it first, a
            mask differs in size from its image, or an example is in two splits.
    """

    name: str
    inputs: np.ndarray
    labels: np.ndarray
    class_names: tuple[str, ...]
    domains: np.ndarray
    domain_names: tuple[str, ...]
    is_valid: np.ndarray
    is_test: np.ndarray
    notes: tuple[str, ...] = ()
    vocabulary: int | None = None
    units: Units | None = None

    def __post_init__(self) -> None:
        self._check_lengths()
        self._check_inputs()
        if self.kind.name in ("tags", "numbers"):
            self._check_values()
        elif self.kind.name == "times":
            self._check_times()
        else:
            self._check_indices("label", self.labels, self.class_names)
        self._check_indices("domain", self.domains, self.domain_names)
        for kind, names in (("class", self.class_names), ("domain", self.domain_names)):
            if repeated := next((name for name, count in Counter(names).items() if count > 1), None):
                raise InputError(f"{self.name}: the {kind} '{repeated}' is named twice. Give each its own name.")

    @property
    def kind(self) -> Kind:
        """The kind of labels."""
        return find_kind(self.labels)

    @property
    def num_classes(self) -> int:
        """The number of classes, tags, ranks or targets."""
        return len(self.class_names)

    @property
    def is_segmentation(self) -> bool:
        """Whether the labels are masks."""
        return self.kind.name == "masks"

    @property
    def has_label_per_example(self) -> bool:
        """Whether each example has a single class, time or rank, rather than several labels or numbers."""
        return self.labels.ndim == 1

    @property
    def classes(self) -> np.ndarray:
        """The labels as classes; for survival times, whether there was an event."""
        if self.kind.name == "times":
            return (self.labels > 0).astype(np.int32)
        return self.labels.astype(np.int32) if self.kind.name == "ranks" else self.labels

    @property
    def has_tokens(self) -> bool:
        """Whether the inputs are sequences of tokens."""
        return are_tokens(self.inputs)

    @property
    def class_counts(self) -> np.ndarray:
        """[domain, class] int64: the number of examples, or of labeled pixels or positions, see `count_labels`."""
        counts = np.zeros((len(self.domain_names), self.num_classes), np.int64)
        if self.is_segmentation:
            for domain, mask in zip(self.domains, self.labels, strict=True):
                counts[domain] += np.bincount(mask.reshape(-1), minlength=self.num_classes)
            return counts
        order = np.argsort(self.domains, kind="stable")
        bounds = np.searchsorted(self.domains[order], np.arange(len(counts) + 1))
        for domain, (first, end) in enumerate(pairwise(bounds)):
            counts[domain] = count_labels(self.labels[order[first:end]], self.num_classes)
        return counts

    @property
    def splits(self) -> dict[str, np.ndarray]:
        """The published splits: {"train", "valid", "test"}, each [n] bool."""
        return {"train": ~(self.is_valid | self.is_test), "valid": self.is_valid, "test": self.is_test}

    def _check_lengths(self) -> None:
        num = len(self.inputs)
        if num == 0:
            raise InputError(f"{self.name}: the data set has no examples. Give the path of one that has.")
        if 0 in self.inputs.shape:
            raise InputError(f"{self.name}: inputs of shape {self.inputs.shape} are empty. Give each a pixel.")
        check_channels_last(self.name, self.inputs)
        for field in ("labels", "domains", "is_valid", "is_test"):
            kind = self.kind.name if field == "labels" and self.labels.ndim else "classes"
            is_dense = kind in ("masks", "sequences")
            shape = (num, *self.inputs.shape[1:3]) if is_dense else (num,)
            if kind in ("tags", "numbers"):
                shape = (num, self.num_classes)
            if (given := getattr(self, field).shape) != shape:
                raise InputError(
                    f"{self.name}: {num} inputs but {field} of shape {given}, not {shape}. Give every "
                    f"{('position' if self.has_tokens else 'pixel') if is_dense else 'example'} one."
                )
        if (overlap := self.is_valid & self.is_test).any():
            raise InputError(
                f"{self.name}: example {int(np.argmax(overlap))} is in validation and test. Leave it in one of them."
            )

    def _check_inputs(self) -> None:
        if self.inputs.dtype == np.uint8:
            if self.inputs.ndim != 4:
                raise InputError(
                    f"{self.name}: uint8 images of shape {self.inputs.shape}. Give [n, height, width, channel], or "
                    "float32 for arrays that are not images."
                )
        elif self.has_tokens and self.inputs.ndim == 2 and self.inputs.itemsize <= 4:
            smallest, largest = int(self.inputs.min()), int(self.inputs.max())
            if smallest < PADDING or (self.vocabulary is not None and largest >= self.vocabulary):
                raise InputError(
                    f"{self.name}: the inputs hold the token {smallest if smallest < PADDING else largest}. Number "
                    f"tokens from 0{'' if self.vocabulary is None else f' to {self.vocabulary - 1}'}; -1 is padding."
                )
        elif self.inputs.dtype != np.float32 or self.inputs.ndim < 2:
            raise InputError(
                f"{self.name}: inputs are {self.inputs.dtype} of shape {self.inputs.shape}. Give uint8 images "
                "[n, height, width, channel], float32 arrays [n, ...] or int32 tokens [n, length]."
            )
        elif not (is_finite := self._find_finite()).all():
            raise InputError(
                f"{self.name}: inputs[{int(np.argmin(is_finite))}] holds NaN or infinity; {int((~is_finite).sum())} of "
                f"{len(is_finite)} examples do. Remove or fill them."
            )

    def _find_finite(self) -> np.ndarray:
        """[n] bool; computed in chunks, because memory-mapped examples may not fit in memory."""
        inputs = self.inputs.reshape(len(self.inputs), -1)
        parts = np.array_split(inputs, -(-inputs.nbytes // _CHUNK_BYTES))
        return np.concatenate([np.isfinite(part).all(axis=1) for part in parts])

    def _check_times(self) -> None:
        if self.labels.dtype != np.float32 or self.labels.ndim != 1 or len(self.class_names) != 2:
            raise InputError(
                f"{self.name}: survival times are {self.labels.dtype} {self.labels.shape} with "
                f"{len(self.class_names)} classes. Give float32 [n], and two class names: no event, event."
            )
        if not (is_time := np.isfinite(self.labels) & (np.abs(self.labels) >= 1)).all():
            first = int(np.argmin(is_time))
            raise InputError(
                f"{self.name}: labels[{first}] is {self.labels[first]:g}. Give 1 + t for an event at t >= 0, and "
                "-(1 + t) where there was none until t."
            )

    def _check_values(self) -> None:
        is_fine = np.isfinite(self.labels) if self.kind.name == "numbers" else (abs(self.labels) <= 1)
        if not is_fine.all():
            place = np.argwhere(~is_fine)[0].tolist()
            wanted = "finite numbers" if self.kind.name == "numbers" else "1, 0 or -1 for an unknown tag"
            raise InputError(f"{self.name}: labels{place} is {self.labels[tuple(place)]}. Give {wanted}.")
        if self.kind.name == "tags" and not (self.labels >= 0).any():
            raise InputError(f"{self.name}: all tags are unknown. Give some examples their tags.")

    def _check_indices(self, kind: str, values: np.ndarray, names: tuple[str, ...]) -> None:
        dtype, lowest = np.uint8 if values.ndim > 2 else np.int32, -1 if values.ndim == 2 else 0
        if values.dtype != dtype and not (kind == "label" and self.kind.name == "ranks"):
            raise InputError(f"{self.name}: {kind}s are {values.dtype}. Give integers from 0, as {dtype.__name__}.")
        if values.min() < lowest or values.max() >= len(names):
            first = np.argwhere((values < lowest) | (values >= len(names)))[0].tolist()
            raise InputError(
                f"{self.name}: {kind}s{first} is {int(values[tuple(first)])}, but there are {len(names)} {kind} names, "
                f"so it must lie in {lowest}..{len(names) - 1}. Count {kind}s from 0, or name them all."
            )


def check_channels_last(name: str, images: np.ndarray) -> None:
    """Raise InputError for images of shape [n, 1 or 3, height, width], if uint8, or float and square."""
    _, channels, height, width = images.shape if images.ndim == 4 else (0, 0, 0, 0)
    is_image = images.dtype == np.uint8 or (images.dtype.kind == "f" and height == width)
    if is_image and channels in (1, 3) and min(height, width) > 4:
        raise InputError(
            f"{name}: images of shape {images.shape} have the channel axis first. Give it last: "
            "np.moveaxis(images, 1, -1)."
        )

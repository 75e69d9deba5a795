"""Data sets: examples with labels, domains and published splits."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedjax_het.data.encoding import decode_one_hot, index_names, list_some, number_names, sort_naturally, to_array
from fedjax_het.errors import InputError
from fedjax_het.labels import PADDING, are_times, are_tokens

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
            [n, length] int32, the class of each position, -1 for padding; or survival times [n] float32, see
            `fedjax_het.labels`, with classes (no event, event).
        class_names: The name of each class.
        domains: [n] int32, the domain (site, style, hospital) of each example.
        domain_names: The name of each domain.
        is_valid: [n] bool, the published validation split.
        is_test: [n] bool, the published test split.
        notes: Notes of the source on the files it read, one sentence each.
        vocabulary: The number of tokens of the tokenizer; None if inputs are not tokens, or this is not known.

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

    def __post_init__(self) -> None:
        self._check_lengths()
        self._check_inputs()
        if are_times(self.labels):
            self._check_times()
        else:
            self._check_indices("label", self.labels, self.class_names)
        self._check_indices("domain", self.domains, self.domain_names)
        for kind, names in (("class", self.class_names), ("domain", self.domain_names)):
            if repeated := next((name for name, count in Counter(names).items() if count > 1), None):
                raise InputError(f"{self.name}: the {kind} '{repeated}' is named twice. Give each its own name.")

    @property
    def num_classes(self) -> int:
        return len(self.class_names)

    @property
    def is_segmentation(self) -> bool:
        """Whether the labels are masks."""
        return self.labels.ndim > 2

    @property
    def has_label_per_example(self) -> bool:
        """Whether each example has a single label, rather than one per pixel or position."""
        return self.labels.ndim == 1

    @property
    def classes(self) -> np.ndarray:
        """The labels as classes; for survival times, whether there was an event."""
        return (self.labels > 0).astype(np.int32) if are_times(self.labels) else self.labels

    @property
    def has_tokens(self) -> bool:
        """Whether the inputs are sequences of tokens."""
        return are_tokens(self.inputs)

    @property
    def class_counts(self) -> np.ndarray:
        """[domain, class] int64: the number of examples, or of labeled pixels or positions."""
        counts = np.zeros((len(self.domain_names), self.num_classes), np.int64)
        if self.is_segmentation:
            for domain, mask in zip(self.domains, self.labels, strict=True):
                counts[domain] += np.bincount(mask.reshape(-1), minlength=self.num_classes)
        else:
            domains = self.domains.reshape(-1, *(1,) * (self.labels.ndim - 1))
            classes = self.classes
            is_counted = classes >= 0
            np.add.at(counts, (np.broadcast_to(domains, classes.shape)[is_counted], classes[is_counted]), 1)
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
            is_dense = field == "labels" and not self.has_label_per_example
            shape = (num, *self.inputs.shape[1:3]) if is_dense else (num,)
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

    def _check_indices(self, kind: str, values: np.ndarray, names: tuple[str, ...]) -> None:
        dtype, lowest = np.uint8 if values.ndim > 2 else np.int32, -1 if values.ndim == 2 else 0
        if values.dtype != dtype:
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


def escape_name(name: object) -> str:
    r"""Write control characters and bytes that are not UTF-8 as escapes (\n, \x1b, \udce9), for tables and files."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in str(name))


def assemble(
    name: str,
    inputs: Any,
    labels: Any,
    *,
    class_names: Sequence[object] | None = None,
    domains: Any = None,
    domain_names: Sequence[object] | None = None,
    is_valid: np.ndarray | None = None,
    is_test: np.ndarray | None = None,
    notes: Sequence[str] = (),
    vocabulary: int | None = None,
) -> Dataset:
    """Build a `Dataset` from arrays or lists, with type conversion and defaults.

    Memory-mapped arrays stay memory-mapped unless their type must change.

    Args:
        name: The name of the data set.
        inputs: Images [n, height, width] or [n, height, width, channel] uint8, or other integers in 0..255, floats
            [n, ...], or tokens [n, length] int8, int16 or int32, with -1 for padding.
        labels: Integers, booleans or strings [n] or [n, 1]; one-hot [n, class]; masks [n, height, width], with values
            0 and 255 converted to 0 and 1; for tokens, [n, length] with -1 for padding; or, with `class_names`,
            survival times [n] float32.
        class_names: Default: "0", "1", ... up to the largest label, with a note on classes without examples; for
            string labels, the sorted strings.
        domains: Integers or strings [n] (default: all examples are in one domain).
        domain_names: The name of each domain. Default: "all", or "domain_0", "domain_1", ...; for string domains, the
            strings in natural order.
        is_valid: [n] bool (default: no published validation split).
        is_test: [n] bool (default: no published test split).
        notes: Notes of the source, one sentence each.
        vocabulary: The number of tokens, see `Dataset`.

    Returns:
        The data set. Grayscale images get a channel axis of length 1, floats become float32.

    Raises:
        InputError: Labels or domains are neither integers nor strings, examples differ in shape or have several labels,
            or `Dataset` rejects the arrays.
    """
    inputs, labels, notes = to_array(f"{name}: inputs", inputs), to_array(f"{name}: labels", labels), list(notes)
    if labels.ndim == 2 and labels.shape[1] == 1 and inputs.shape != labels.shape:
        labels = labels[:, 0]
    elif labels.ndim == 2 and not are_tokens(inputs):
        class_names = range(labels.shape[1]) if class_names is None else class_names
        notes.append(f"one-hot labels of shape {labels.shape}")
        labels = decode_one_hot(name, labels)
    if labels.dtype != np.float32 or labels.ndim != 1 or class_names is None:
        labels, class_names = index_names(f"{name}: labels", labels, class_names)
        is_named = len(class_names or ()) > 255
        if labels.ndim > 2 and not is_named and labels.max(initial=0) == 255 and np.isin(labels, (0, 255)).all():
            labels = (labels > 0).astype(np.uint8)
            notes.append("masks of 0 and 255 are read as 0 and 1")
    if inputs.ndim == 0:
        raise InputError(f"{name}: inputs are a single {inputs.dtype}. Give an array [n, ...], one entry per example.")
    if inputs.dtype.kind in "iu" and inputs.dtype != np.uint8 and inputs.ndim > 2 and _are_bytes(inputs):
        notes.append(f"inputs of {inputs.dtype} in 0..255 are read as uint8 images")
        inputs = inputs.astype(np.uint8)
    if inputs.dtype == np.uint8 and inputs.ndim == 3:
        inputs = inputs[..., None]
    elif inputs.dtype.kind == "f":
        inputs = inputs.astype(np.float32, copy=False)
    if class_names is None:
        class_names = number_names(f"{name}: labels", int(labels.max(initial=0)), len(inputs))
        present = set(np.unique(labels).tolist())
        if missing := [str(label) for label in range(len(class_names)) if label not in present]:
            advice = "number the labels from 0 without gaps to leave them out"
            notes.append(
                f"{len(missing)} of {len(class_names)} classes have no example ({list_some(missing)}): {advice}"
            )
    domains = np.zeros(len(inputs), np.int32) if domains is None else domains
    domains, domain_names = index_names(f"{name}: domains", domains, domain_names, sort_naturally)
    if domain_names is None:
        largest = int(domains.max(initial=0))
        domain_names = number_names(f"{name}: domains", largest, len(domains), "domain_") if largest else ("all",)
    return Dataset(
        name=escape_name(name),
        inputs=inputs,
        labels=labels,
        class_names=tuple(map(escape_name, class_names)),
        domains=domains,
        domain_names=tuple(map(escape_name, domain_names)),
        is_valid=np.zeros(len(inputs), bool) if is_valid is None else np.asarray(is_valid, bool),
        is_test=np.zeros(len(inputs), bool) if is_test is None else np.asarray(is_test, bool),
        notes=tuple(notes),
        vocabulary=vocabulary,
    )


def _are_bytes(values: np.ndarray) -> bool:
    return values.min(initial=0) >= 0 and values.max(initial=0) <= 255

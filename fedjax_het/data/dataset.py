"""A data set as a source read it: examples, labels, domains, and its own split. Arrays may be memory-mapped."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedjax_het.errors import InputError, shorten

_CHUNK_BYTES = 1 << 28  # bytes
_MAX_UNNAMED = 1 << 16  # classes or domains


@dataclass(frozen=True, eq=False)
class Dataset:
    """Every example of a data set, in the order in which its source read them. Checked when it is made.

    Raises InputError for arrays that differ in length, labels or domains out of range, inputs that are not finite,
    images without a channel axis, masks of another size than their images, examples in two splits, and a data set
    without examples.
    """

    name: str
    inputs: np.ndarray  # uint8 images [n, height, width, channel], or float32 [n, ...]
    labels: np.ndarray  # [n] int32, or masks [n, height, width] uint8: the class of each pixel
    class_names: tuple[str, ...]
    domains: np.ndarray  # [n] int32
    domain_names: tuple[str, ...]
    is_valid: np.ndarray  # [n] bool: the data set's own validation split
    is_test: np.ndarray  # [n] bool: the data set's own test split
    notes: tuple[str, ...] = ()  # what the source has to say about what it found, a sentence each

    def __post_init__(self) -> None:
        self.check()

    @property
    def num_classes(self) -> int:
        return len(self.class_names)

    @property
    def is_segmentation(self) -> bool:
        """Whether labels are masks."""
        return self.labels.ndim > 1

    @property
    def class_counts(self) -> np.ndarray:
        """[domains, class] int64: the examples of each domain by class; their pixels where labels are masks."""
        counts = np.zeros((len(self.domain_names), self.num_classes), np.int64)
        if self.is_segmentation:
            for domain, mask in zip(self.domains, self.labels, strict=True):
                counts[domain] += np.bincount(mask.reshape(-1), minlength=self.num_classes)
        else:
            np.add.at(counts, (self.domains, self.labels), 1)
        return counts

    @property
    def splits(self) -> dict[str, np.ndarray]:
        """{"train", "valid", "test"}: [n] bool, as the data set itself divides its examples."""
        return {"train": ~(self.is_valid | self.is_test), "valid": self.is_valid, "test": self.is_test}

    def check(self) -> None:
        """Raise InputError for anything that training would stumble over."""
        self._check_lengths()
        self._check_inputs()
        self._check_indices("label", self.labels, self.class_names)
        self._check_indices("domain", self.domains, self.domain_names)
        for kind, names in (("class", self.class_names), ("domain", self.domain_names)):
            if twice := next((name for name, count in Counter(names).items() if count > 1), None):
                raise InputError(f"{self.name}: the {kind} '{twice}' is named twice. Give each its own name.")

    def _check_lengths(self) -> None:
        num = len(self.inputs)
        if num == 0:
            raise InputError(f"{self.name}: no examples. Point the source at data that has some.")
        if 0 in self.inputs.shape:
            raise InputError(f"{self.name}: inputs of shape {self.inputs.shape} are empty. Give every example a pixel.")
        is_masks = self.is_segmentation
        shapes = {"labels": (num, *self.inputs.shape[1:3]) if is_masks else (num,)}
        for field in ("labels", "domains", "is_valid", "is_test"):
            values, shape = getattr(self, field), shapes.get(field, (num,))
            if values.shape != shape:
                raise InputError(
                    f"{self.name}: {num} inputs but {field} of shape {values.shape}, not {shape}. Give every "
                    f"{'pixel' if is_masks and field == 'labels' else 'example'} one."
                )
        if (both := self.is_valid & self.is_test).any():
            raise InputError(f"{self.name}: example {int(np.argmax(both))} is in validation and test. Choose one.")

    def _check_inputs(self) -> None:
        if self.inputs.dtype == np.uint8:
            if self.inputs.ndim != 4:
                raise InputError(
                    f"{self.name}: uint8 images of shape {self.inputs.shape}. Give [n, height, width, channel], or "
                    "float32 for arrays that are not images."
                )
        elif self.inputs.dtype != np.float32 or self.inputs.ndim < 2:
            raise InputError(
                f"{self.name}: inputs are {self.inputs.dtype} of shape {self.inputs.shape}. Give uint8 images "
                "[n, height, width, channel] or float32 arrays [n, ...]."
            )
        elif not (is_finite := self._is_finite()).all():
            raise InputError(
                f"{self.name}: inputs[{int(np.argmin(is_finite))}] holds NaN or infinity; {int((~is_finite).sum())} of "
                f"{len(is_finite)} examples do. Remove or fill them."
            )

    def _is_finite(self) -> np.ndarray:
        """[n] bool, of so many examples at a time that mapped ones are not all in memory at once."""
        inputs = self.inputs.reshape(len(self.inputs), -1)
        parts = np.array_split(inputs, -(-inputs.nbytes // _CHUNK_BYTES))
        return np.concatenate([np.isfinite(part).all(axis=1) for part in parts])

    def _check_indices(self, kind: str, values: np.ndarray, names: tuple[str, ...]) -> None:
        dtype = np.uint8 if values.ndim > 1 else np.int32
        if values.dtype != dtype:
            raise InputError(f"{self.name}: {kind}s are {values.dtype}. Give integers from 0, as {dtype.__name__}.")
        if values.min() < 0 or values.max() >= len(names):
            first = np.argwhere((values < 0) | (values >= len(names)))[0].tolist()
            raise InputError(
                f"{self.name}: {kind}s{first} is {int(values[tuple(first)])}, but there are {len(names)} {kind} names, "
                f"so it must lie in 0..{len(names) - 1}. Count {kind}s from 0, or name them all."
            )


def escape_name(name: object) -> str:
    r"""A name that stands on one line of any table or file: line breaks, other control characters and bytes that are
    not UTF-8 as escapes (\n, \x1b, \udce9)."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in str(name))


def assemble(
    name: str,
    inputs: np.ndarray,
    labels: np.ndarray,
    *,
    class_names: Sequence[str] | None = None,
    domains: np.ndarray | None = None,
    domain_names: Sequence[str] = ("all",),
    is_valid: np.ndarray | None = None,
    is_test: np.ndarray | None = None,
    notes: Sequence[str] = (),
) -> Dataset:
    """A Dataset from arrays as they come: grey images [n, h, w] gain a channel axis, floats become float32.

    Without `class_names` the classes are called "0", "1", ... up to the largest label; without `domains` all examples
    are of the first domain; without `is_valid` and `is_test` there is no own split. Memory-mapped arrays stay so.
    Raises InputError where labels or domains are not integers, and as Dataset does.
    """
    inputs, labels = np.asanyarray(inputs), _to_integers(f"{name}: labels", labels)
    if inputs.ndim == 0:
        raise InputError(f"{name}: inputs are a single {inputs.dtype}. Give [n, ...], an entry for each example.")
    if inputs.dtype == np.uint8 and inputs.ndim == 3:
        inputs = inputs[..., None]
    elif inputs.dtype.kind == "f":
        inputs = inputs.astype(np.float32, copy=False)
    if class_names is None:
        class_names = number_names(f"{name}: labels", int(labels.max(initial=0)), len(inputs))
    domains = np.zeros(len(inputs), np.int32) if domains is None else _to_integers(f"{name}: domains", domains)
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
    )


def number_names(what: str, largest: int, num_examples: int, prefix: str = "") -> list[str]:
    """The names of classes or domains that have none: "0", "1", ... up to the largest that occurs.

    Raises InputError where that is far more than there are examples.
    """
    if largest >= max(num_examples, _MAX_UNNAMED):
        raise InputError(
            f"{what} go up to {shorten(largest)}, for {num_examples} examples. Number them from 0, or name them all."
        )
    return [f"{prefix}{number}" for number in range(largest + 1)]


def _to_integers(what: str, values: np.ndarray) -> np.ndarray:
    """[n] as int32; masks, which have more axes, as uint8 where that holds them."""
    values = np.asanyarray(values)
    if values.dtype.kind not in "iu":
        raise InputError(f"{what} are {values.dtype}, not integers. Give each class or domain its index, from 0.")
    limits = np.iinfo(np.int32)
    if values.size and not limits.min <= int(values.min()) <= int(values.max()) <= limits.max:
        place = np.argwhere((values < limits.min) | (values > limits.max))[0].tolist()
        raise InputError(f"{what}{place} is {int(values[tuple(place)])}. Give each class or domain its index, from 0.")
    is_small = values.ndim > 1 and values.size and values.min() >= 0 and values.max() <= 255
    return values.astype(np.uint8 if is_small else np.int32, copy=False)

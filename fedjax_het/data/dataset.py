"""A data set in memory, as a source read it: examples, labels, domains, and its own test split."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedjax_het.errors import InputError

_AT_A_TIME = 1 << 28  # bytes


@dataclass(frozen=True, eq=False)
class Dataset:
    """Every example of a data set, in the order in which its source read them. Checked when it is made.

    Raises InputError for arrays that differ in length, labels or domains out of range, inputs that are not finite,
    images without a channel axis, and a data set without examples.
    """

    name: str
    inputs: np.ndarray  # uint8 images [n, height, width, channel], or float32 [n, ...]
    labels: np.ndarray  # [n] int32
    class_names: tuple[str, ...]
    domains: np.ndarray  # [n] int32
    domain_names: tuple[str, ...]
    is_test: np.ndarray  # [n] bool: the data set's own test split

    def __post_init__(self) -> None:
        self.check()

    @property
    def num_classes(self) -> int:
        return len(self.class_names)

    def check(self) -> None:
        """Raise InputError for anything that training would stumble over."""
        self._check_lengths()
        self._check_inputs()
        self._check_indices("label", self.labels, self.class_names)
        self._check_indices("domain", self.domains, self.domain_names)

    def _check_lengths(self) -> None:
        num = len(self.inputs)
        if num == 0:
            raise InputError(f"{self.name}: no examples. Point the source at data that has some.")
        for field in ("labels", "domains", "is_test"):
            values = getattr(self, field)
            if values.shape != (num,):
                raise InputError(
                    f"{self.name}: {num} inputs but {field} of shape {values.shape}. Give every example one."
                )

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
        parts = np.array_split(inputs, -(-inputs.nbytes // _AT_A_TIME))
        return np.concatenate([np.isfinite(part).all(axis=1) for part in parts])

    def _check_indices(self, kind: str, values: np.ndarray, names: tuple[str, ...]) -> None:
        if values.dtype != np.int32:
            raise InputError(f"{self.name}: {kind}s are {values.dtype}. Give integers from 0, as int32.")
        is_wrong = (values < 0) | (values >= len(names))
        if is_wrong.any():
            first = int(np.argmax(is_wrong))
            raise InputError(
                f"{self.name}: {kind}s[{first}] is {int(values[first])}, but there are {len(names)} {kind} names, so "
                f"it must lie in 0..{len(names) - 1}. Count {kind}s from 0, or name them all."
            )


def assemble(
    name: str,
    inputs: np.ndarray,
    labels: np.ndarray,
    *,
    class_names: Sequence[str] | None = None,
    domains: np.ndarray | None = None,
    domain_names: Sequence[str] = ("all",),
    is_test: np.ndarray | None = None,
) -> Dataset:
    """A Dataset from arrays as they come: grey images [n, h, w] gain a channel axis, floats become float32.

    Without `class_names` the classes are called "0", "1", ... up to the largest label; without `domains` all examples
    are of the first domain; without `is_test` there is no own test split.
    Raises InputError where labels or domains are not integers, and as Dataset does.
    """
    inputs, labels = np.asarray(inputs), _integers(f"{name}: labels", labels)
    if inputs.dtype == np.uint8 and inputs.ndim == 3:
        inputs = inputs[..., None]
    elif inputs.dtype.kind == "f":
        inputs = inputs.astype(np.float32, copy=False)
    if class_names is None:
        class_names = [str(label) for label in range(int(labels.max(initial=0)) + 1)]
    domains = np.zeros(len(inputs), np.int32) if domains is None else _integers(f"{name}: domains", domains)
    return Dataset(
        name=name,
        inputs=inputs,
        labels=labels,
        class_names=tuple(str(each) for each in class_names),
        domains=domains,
        domain_names=tuple(str(each) for each in domain_names),
        is_test=np.zeros(len(inputs), bool) if is_test is None else np.asarray(is_test, bool),
    )


def _integers(what: str, values: np.ndarray) -> np.ndarray:
    values = np.asarray(values)
    if values.dtype.kind not in "iu":
        raise InputError(f"{what} are {values.dtype}, not integers. Give each class or domain its index, from 0.")
    return values.astype(np.int32)

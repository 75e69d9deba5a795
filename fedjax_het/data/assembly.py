"""Data sets from arrays or lists, with type conversion and defaults."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from fedjax_het.data.dataset import Dataset
from fedjax_het.data.encoding import index_names, list_some, number_names, sort_naturally, to_array
from fedjax_het.data.label_arrays import encode_labels
from fedjax_het.data.units import Units
from fedjax_het.errors import InputError
from fedjax_het.labels import KindName, are_tokens


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
    kind: KindName | None = None,
    units: Units | None = None,
) -> Dataset:
    """Build a `Dataset` from arrays or lists, with type conversion and defaults.

    Memory-mapped arrays stay memory-mapped unless their type must change.

    Args:
        name: The name of the data set.
        inputs: Images [n, height, width] or [n, height, width, channel] uint8, or other integers in 0..255, floats
            [n, ...], or tokens [n, length] int8, int16 or int32, with -1 for padding.
        labels: Integers, booleans or strings [n] or [n, 1]; one-hot [n, class]; masks [n, height, width], with values
            0 and 255 converted to 0 and 1; for tokens, [n, length] with -1 for padding; with `class_names`, survival
            times [n] float32; tags [n, tag] of 0, 1 and -1 (unknown); or real numbers, [n] or [n, target].
        class_names: The names of classes, tags, ranks or targets. Default: "0", "1", ... up to the largest label, with
            a note on classes without examples; for string labels, the sorted strings; "tag_0", "target_0", ...
        domains: Integers or strings [n] (default: all examples are in one domain).
        domain_names: The name of each domain. Default: "all", or "domain_0", "domain_1", ...; for string domains, the
            strings in natural order.
        is_valid: [n] bool (default: no published validation split).
        is_test: [n] bool (default: no published test split).
        notes: Notes of the source, one sentence each.
        vocabulary: The number of tokens, see `Dataset`.
        kind: The kind of labels: "classes", "tags", "ranks" (integers from 0, or strings with class_names in order),
            "numbers" or "times"; "sequences" and "masks" have their shape. None: as above, by shape and values.
        units: The units of numbers, see `Dataset`.

    Returns:
        The data set. Grayscale images get a channel axis of length 1, floats become float32.

    Raises:
        InputError: Labels do not have the kind, or it is not clear; domains are neither integers nor strings; examples
            differ in shape; or `Dataset` rejects the arrays.
    """
    inputs, labels, notes = to_array(f"{name}: inputs", inputs), to_array(f"{name}: labels", labels), list(notes)
    if labels.ndim == 2 and labels.shape[1] == 1 and inputs.shape != labels.shape:
        labels = labels if kind in ("tags", "numbers") else labels[:, 0]
    is_text = are_tokens(inputs) or kind == "sequences"
    labels, class_names, found = encode_labels(name, labels, class_names, kind, may_be_sequences=is_text)
    notes += found
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
        units=units,
    )


def _are_bytes(values: np.ndarray) -> bool:
    return values.min(initial=0) >= 0 and values.max(initial=0) <= 255

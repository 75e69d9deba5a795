"""Tables of a data set: its examples by domain, split and class, and by client."""

import io
import logging
import sys
from collections.abc import Iterable, Sequence

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from fedjax_het.data import Dataset, Federation

_MAX_CLASSES, _MAX_DOMAINS, _MAX_CLIENTS = 12, 30, 40  # more are summarized
_MAX_LISTED = 1_000  # classes; more are always summarized
_NAME_WIDTH = 20  # of names that are not folded


def print_dataset(dataset: Dataset, is_whole: bool = False) -> None:
    """Print the description, the table and the notes of a data set.

    Args:
        dataset: the data set.
        is_whole: whether to list all domains, however many there are, and up to 1,000 classes.
    """
    console = Console(markup=False)
    print(describe_dataset(dataset))
    console.print(dataset_table(dataset, is_whole))
    for note in dataset.notes:
        print(f"note: {note}")


def dataset_table(dataset: Dataset, is_whole: bool = False) -> Table:
    """Tabulate the examples of each domain in each split and of each class.

    Many classes are summarized by their number, the smallest and the largest; many domains are counted together.
    """
    names, domains, counts = list(dataset.domain_names), dataset.domains, dataset.class_counts
    if len(names) > _MAX_DOMAINS and not is_whole:
        names, domains, counts = [f"{len(names)} domains"], np.zeros_like(domains), counts.sum(axis=0, keepdims=True)
    rows = [["", *names]]
    for name, is_member in dataset.splits.items():
        rows.append([name, *_format_counts(np.bincount(domains[is_member], minlength=len(names)))])
    if dataset.num_classes <= (_MAX_LISTED if is_whole else _MAX_CLASSES):
        shares = 100 * counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
        for name, column, share in zip(dataset.class_names, counts.T, shares.T, strict=True):
            are_counts = dataset.has_label_per_example
            rows.append([name, *(_format_counts(column) if are_counts else [f"{percent:.1f} %" for percent in share])])
    else:
        rows.append(["classes", *_format_counts(np.count_nonzero(counts, axis=1))])
        rows.append(["fewest of a class", *_format_counts([row[row > 0].min(initial=row.max()) for row in counts])])
        rows.append(["most of a class", *_format_counts(counts.max(axis=1))])
    return _make_table(rows if len(rows[0]) <= len(rows) else list(map(list, zip(*rows, strict=True))))


def _format_counts(values: Iterable[int]) -> list[str]:
    return [f"{int(value):,}" for value in values]


def _make_table(rows: Sequence[Sequence[str]]) -> Table:
    """Make a table whose first row is the heading and whose first column holds the names."""
    table = Table(box=SIMPLE_HEAD, collapse_padding=True, pad_edge=False)
    for i, name in enumerate(rows[0]):
        width = 0 if i else min(_NAME_WIDTH, max(len(row[0]) for row in rows))
        table.add_column(name, justify="right" if i else "left", overflow="fold", min_width=width)
    for row in rows[1:]:
        table.add_row(*row)
    return table


def client_table(federation: Federation) -> Table:
    """Tabulate each client's examples for training, validation and test, newcomers last, and those held out of all.

    Training examples are also counted by class (of masks and sequences, in per cent of pixels or positions), or if
    there are many classes, summarized; of many clients the first are shown.
    """
    is_wide, clients = federation.num_classes > _MAX_CLASSES, federation.describe()
    part = [["client", "train", "valid", "test", *(["classes", "largest"] if is_wide else federation.class_names)]]
    for row in clients[:_MAX_CLIENTS]:
        name = f"{row['client']} (never trains)" if row["is_newcomer"] else row["client"]
        counts = np.array(list(row["classes"].values()))
        shares = [f"{share:.1f} %" for share in 100 * counts / max(counts.sum(), 1)]
        if is_wide:
            classes = [
                str(np.count_nonzero(counts)),
                f"{federation.class_names[counts.argmax()]}: {shares[counts.argmax()]}",
            ]
        else:
            classes = _format_counts(counts) if federation.examples.labels.ndim == 1 else shares
        part.append([name, *_format_counts(row[split] for split in ("train", "valid", "test")), *classes])
    if num_more := len(clients[_MAX_CLIENTS:]):
        part.append([f"{num_more:,} more clients", *["..."] * (len(part[0]) - 1)])
    held_out = {"common test": federation.test, **{f"unseen: {name}": rows for name, rows in federation.unseen.items()}}
    empty = [""] * (len(part[0]) - 4)
    part += [[name, "", "", f"{int(rows.count):,}", *empty] for name, rows in held_out.items() if rows is not None]
    return _make_table(part)


def describe_dataset(dataset: Dataset) -> str:
    """Describe the size, the kind and the place of a data set."""
    inputs = dataset.inputs
    size = f"{inputs.nbytes / 2**20:,.1f} MiB"
    place = f" mapped from {inputs.filename}" if isinstance(inputs, np.memmap) and inputs.filename else ""
    kind = "in" if dataset.has_label_per_example else "masks of" if dataset.is_segmentation else "sequences of"
    return (
        f"{dataset.name}: {len(inputs):,} examples {' x '.join(map(str, inputs.shape[1:]))} {inputs.dtype}, {kind} "
        f"{dataset.num_classes} classes, {size}{place}"
    )


def print_progress() -> None:
    """Print the progress of decoding data sets from here on.

    Paths that are not UTF-8 are printed with escapes, where Python would end with an error.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    log = logging.getLogger("fedjax_het")
    if not any(isinstance(handler, _ProgressHandler) for handler in log.handlers):
        log.addHandler(_ProgressHandler())
        log.setLevel(logging.INFO)


class _ProgressHandler(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno == logging.INFO:
            print(record.getMessage(), flush=True)

"""What a source found, as a table: examples of every domain, split and class."""

import io
import logging
import sys
from collections.abc import Iterable, Sequence

import numpy as np
from rich.console import Console
from rich.table import Table

from fedjax_het.data import Dataset, Federation

_MOST_CLASSES = 12  # more are summed up where nobody asks for the whole

_MOST_DOMAINS = 30  # likewise


def print_dataset(dataset: Dataset, is_whole: bool = False) -> None:
    """Print what a data set is, its table and its notes; is_whole: every class, however many there are."""
    console = Console(markup=False)
    print(describe_dataset(dataset))
    console.print(dataset_table(dataset, is_whole))
    for note in dataset.notes:
        print(f"note: {note}")


def dataset_table(dataset: Dataset, is_whole: bool = False) -> Table:
    """The examples of each domain in each split and of each class.

    Of many classes their number, the fewest and the most; many domains are taken together.
    """
    names, domains, counts = list(dataset.domain_names), dataset.domains, dataset.class_counts
    if len(names) > _MOST_DOMAINS and not is_whole:
        names, domains, counts = [f"{len(names)} domains"], np.zeros_like(domains), counts.sum(axis=0, keepdims=True)
    rows = [["", *names]]
    for name, is_member in dataset.splits.items():
        rows.append([name, *_numbers(np.bincount(domains[is_member], minlength=len(names)))])
    if dataset.num_classes <= _MOST_CLASSES or is_whole:
        shares = 100 * counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
        for name, column, share in zip(dataset.class_names, counts.T, shares.T, strict=True):
            rows.append([name, *([f"{each:.1f} %" for each in share] if dataset.is_segmentation else _numbers(column))])
    else:
        rows.append(["classes", *_numbers(np.count_nonzero(counts, axis=1))])
        rows.append(["fewest of a class", *_numbers([row[row > 0].min(initial=row.max()) for row in counts])])
        rows.append(["most of a class", *_numbers(counts.max(axis=1))])
    return _make_table(rows if len(rows[0]) <= len(rows) else list(map(list, zip(*rows, strict=True))))


def _numbers(values: Iterable[int]) -> list[str]:
    return [f"{int(value):,}" for value in values]


def _make_table(rows: Sequence[Sequence[str]]) -> Table:
    """The first row is the heading, the first column the names."""
    shown = Table()
    for i, name in enumerate(rows[0]):
        shown.add_column(name, justify="right" if i else "left", overflow="fold")
    for row in rows[1:]:
        shown.add_row(*row)
    return shown


def client_table(federation: Federation) -> Table:
    """A row a client, newcomers last: what it trains on, validates and tests with; then what is held out of all."""
    rows = [["client", "train", "valid", "test"]]
    for row in federation.describe():
        name = f"{row['client']} (never trains)" if row["is_newcomer"] else row["client"]
        rows.append([name, *_numbers(row[split] for split in ("train", "valid", "test"))])
    held_out = {"common test": federation.test, **{f"unseen: {name}": rows for name, rows in federation.unseen.items()}}
    rows += [[name, "", "", *_numbers([each.count])] for name, each in held_out.items() if each is not None]
    return _make_table(rows)


def describe_dataset(dataset: Dataset) -> str:
    """How much of what, and where it lies."""
    inputs = dataset.inputs
    size = f"{inputs.nbytes / 2**20:,.1f} MiB"
    place = f" mapped from {inputs.filename}" if isinstance(inputs, np.memmap) and inputs.filename else ""
    kind = "masks of" if dataset.is_segmentation else "in"
    return (
        f"{dataset.name}: {len(inputs):,} examples {' x '.join(map(str, inputs.shape[1:]))} {inputs.dtype}, {kind} "
        f"{dataset.num_classes} classes, {size}{place}"
    )


def print_progress() -> None:
    """Print how far the decoding of a data set is; warnings find their way without that.

    From here on paths that are not UTF-8 are printed with escapes, where Python would end with an error.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    log = logging.getLogger("fedjax_het")
    if not any(isinstance(handler, _Progress) for handler in log.handlers):
        log.addHandler(_Progress())
        log.setLevel(logging.INFO)


class _Progress(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno == logging.INFO:
            print(record.getMessage(), flush=True)

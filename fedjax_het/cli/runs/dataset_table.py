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
from fedjax_het.labels import find_kind

_DENSE = ("masks", "sequences")  # whose labels are not counted in examples
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
    """Tabulate the examples of each domain in each split and of each class; many domains are counted together."""
    names, domains, counts = list(dataset.domain_names), dataset.domains, dataset.class_counts
    if len(names) > _MAX_DOMAINS and not is_whole:
        names, domains, counts = [f"{len(names)} domains"], np.zeros_like(domains), counts.sum(axis=0, keepdims=True)
    splits = [np.bincount(domains[is_member], minlength=len(names)) for is_member in dataset.splits.values()]
    records = [("", dataset.splits, dataset.class_names), *zip(names, zip(*splits, strict=True), counts, strict=True)]
    is_dense = dataset.kind.name in _DENSE
    rows = _count_examples(records, not is_dense, _MAX_LISTED if is_whole else _MAX_CLASSES)
    return _make_table(list(map(list, zip(*rows, strict=True))) if len(rows) <= len(rows[0]) else rows)


def client_table(federation: Federation) -> Table:
    """Tabulate each client's examples in each split and of each class, newcomers last, and those held out of all.

    Training examples alone are counted by class. Of many clients the first are shown.
    """
    splits, clients = ("train", "valid", "test"), federation.describe()
    records: list[_Record] = [("client", splits, federation.class_names)]
    for client in clients[:_MAX_CLIENTS]:
        name = client["client"] + " (never trains)" * client["is_newcomer"]
        records.append((name, [client[split] for split in splits], list(client["classes"].values())))
    rows = _count_examples(records, find_kind(federation.examples.labels).name not in _DENSE)
    if num_more := len(clients[_MAX_CLIENTS:]):
        rows.append([f"{num_more:,} more clients", *["..."] * (len(rows[0]) - 1)])
    held_out = {"common test": federation.test, **{f"unseen: {name}": part for name, part in federation.unseen.items()}}
    empty = [""] * (len(rows[0]) - 4)
    rows += [[name, "", "", f"{int(part.count):,}", *empty] for name, part in held_out.items() if part is not None]
    return _make_table(rows)


_Record = tuple[str, Iterable, Sequence]


def _count_examples(records: Sequence[_Record], are_examples: bool, max_classes: int = _MAX_CLASSES) -> list[list[str]]:
    """Format (name, number in each split, number of each class) records below their heading.

    Where classes are not counted in examples but in pixels or positions, their shares are shown. Many classes are
    summarized by their number, the smallest and the largest.
    """
    (title, splits, classes), *records = records
    is_listed = len(classes) <= max_classes
    rows = [[title, *splits, *(classes if is_listed else ("classes", "smallest class", "largest class"))]]
    for name, sizes, counts in records:
        texts = [f"{n:,}" if are_examples else f"{100 * n / max(sum(counts), 1):.1f} %" for n in counts]
        if not is_listed:
            present = sorted((i for i, n in enumerate(counts) if n), key=lambda i: counts[i])
            ends = [f"{classes[i]}: {texts[i]}" for i in (present[0], present[-1])] if present else ["", ""]
            texts = [str(len(present)), *ends]
        rows.append([name, *(f"{size:,}" for size in sizes), *texts])
    return rows


def _make_table(rows: Sequence[Sequence[str]]) -> Table:
    """Make a table whose first row is the heading and whose first column holds the names."""
    table = Table(box=SIMPLE_HEAD, collapse_padding=True, pad_edge=False)
    for i, name in enumerate(rows[0]):
        width = 0 if i else min(_NAME_WIDTH, max(len(row[0]) for row in rows))
        table.add_column(name, justify="right" if i else "left", overflow="fold", min_width=width)
    for row in rows[1:]:
        table.add_row(*row)
    return table


def describe_dataset(dataset: Dataset) -> str:
    """Describe the size, the kind and the place of a data set."""
    inputs = dataset.inputs
    size = f"{inputs.nbytes / 2**20:,.1f} MiB"
    place = f" mapped from {inputs.filename}" if isinstance(inputs, np.memmap) and inputs.filename else ""
    form = {"masks": "masks of {} classes", "sequences": "sequences of {} classes"}
    targets = "numbers for {} targets" if dataset.num_classes > 1 else "a number each"
    form |= {"tags": "with {} tags each", "numbers": f"with {targets}", "ranks": "in {} ranks"}
    labels = form.get(dataset.kind.name, "in {} classes").format(dataset.num_classes)
    return (
        f"{dataset.name}: {len(inputs):,} examples {' x '.join(map(str, inputs.shape[1:]))} {inputs.dtype}, {labels}, "
        f"{size}{place}"
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

"""A table of results, as Markdown, LaTeX and CSV."""

import csv
import io
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple


class Value(NamedTuple):
    """A figure over seeds: its mean, its population deviation where there are several, and the stars of a test."""

    mean: float
    std: float | None = None
    stars: str = ""


class Shown(NamedTuple):
    """How a column's figures are written, and which is best: max, min, or None where none is."""

    text: Callable[[float], str]
    best: Callable[[Iterable[float]], float] | None = None


PER_CENT = Shown(lambda value: f"{100 * value:.1f}", max)


class Table(NamedTuple):
    """rows: (label, a value or a text for each column, None where it was not measured)."""

    name: str  # what its files are called
    title: str
    columns: list[str]
    rows: list[tuple[str, list[Value | str | None]]]
    shown: Mapping[str, Shown] = MappingProxyType({})  # by column; per cent, the larger the better, unless given
    note: str = ""  # what a reader has to know besides


class Cell(NamedTuple):
    text: str
    rank: int | None = None  # 0 for the best of its column, 1 for the second best
    key: float | None = None  # what a column is sorted by, where it is a number


def make_cells(table: Table, between: str = " ± ") -> list[list[Cell]]:
    """The table as it is read, a cell for every column; `between` stands between mean and deviation."""
    columns = []
    for i, name in enumerate(table.columns):
        shown = table.shown.get(name, PER_CENT)
        values = [row[i] for _, row in table.rows]
        columns.append([_cell(*each, shown, between) for each in zip(values, _ranked(values, shown), strict=True)])
    return [[column[row] for column in columns] for row in range(len(table.rows))]


SUMMARIES = ("mean", "worst")
"""The columns behind those that they are taken over."""


def narrow(table: Table, most: int) -> Table:
    """The table, with its summaries alone where it has more columns than `most`."""
    if len(table.columns) <= most or not set(SUMMARIES) <= set(table.columns):
        return table
    kept = [table.columns.index(name) for name in SUMMARIES]
    rows = [(label, [values[index] for index in kept]) for label, values in table.rows]
    title = f"{table.title} (all {len(table.columns) - len(kept)} columns: {table.name}.md)"
    return table._replace(title=title, columns=list(SUMMARIES), rows=rows)


def to_markdown(table: Table) -> str:
    """The best of a column in bold, the second best underlined."""
    body = _marked(table, best="**{}**".format, second="<u>{}</u>".format, plain=_in_markdown, between=" ± ")
    lines = [["", *map(_in_markdown, table.columns)], ["---"] + ["---:"] * len(table.columns), *body]
    note = f"\n{table.note}\n" if table.note else ""
    return f"{_in_markdown(table.title)}\n\n" + "".join(f"| {' | '.join(line)} |\n" for line in lines) + note


def to_latex(table: Table) -> str:
    r"""A tabular with the rules of the package booktabs; the best of a column \textbf, the second best \underline."""
    body = _marked(
        table, best=r"\textbf{{{}}}".format, second=r"\underline{{{}}}".format, plain=_escaped, between=" ± "
    )
    head = ["", *map(_escaped, table.columns)]
    rows = [" & ".join(line) + r" \\" for line in (head, *body)]
    lines = [
        *(f"% {' '.join(line.splitlines())}" for line in (table.title, table.note) if line),
        rf"\begin{{tabular}}{{l{'r' * len(table.columns)}}}",
        r"\toprule",
        rows[0],
        r"\midrule",
        *rows[1:],
        r"\bottomrule",
        r"\end{tabular}",
    ]
    return "\n".join(lines) + "\n"


def to_csv(table: Table) -> str:
    """A line for every cell, with all digits (fractions, not per cent; bytes, seconds): row, column, mean, std."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["row", "column", "mean", "std"])
    for label, values in table.rows:
        for column, value in zip(table.columns, values, strict=True):
            mean, std = value[:2] if isinstance(value, Value) else (value, None)
            writer.writerow([label, column, "" if mean is None else mean, "" if std is None else std])
    return text.getvalue()


WRITERS: dict[str, Callable[[Table], str]] = {".md": to_markdown, ".tex": to_latex, ".csv": to_csv}

_Writing = Callable[[str], str]


def _marked(table: Table, best: _Writing, second: _Writing, plain: _Writing, between: str) -> list[list[str]]:
    marks = {0: best, 1: second}
    return [
        [plain(label), *(marks.get(cell.rank, str)(plain(cell.text)) for cell in row)]
        for (label, _), row in zip(table.rows, make_cells(table, between), strict=True)
    ]


def _cell(value: Value | str | None, rank: int | None, shown: Shown, between: str) -> Cell:
    if not isinstance(value, Value):
        return Cell(value or "")
    mean = _text(value.mean, shown)
    text = mean if value.std is None else mean + between + _text(value.std, shown)
    return Cell(text + value.stars, rank, value.mean if math.isfinite(value.mean) else None)


def _text(value: float, shown: Shown) -> str:
    return shown.text(value) if math.isfinite(value) else "not finite"


def _ranked(values: Sequence[Value | str | None], shown: Shown) -> list[int | None]:
    """0 for the best, 1 for the second best, ...: equal as shown is equal; nothing is best alone or where all are."""
    finite = [v.mean if isinstance(v, Value) and math.isfinite(v.mean) else None for v in values]
    means = {_text(mean, shown): mean for mean in finite if mean is not None}  # one of those that look alike
    known = sorted(means, key=means.__getitem__, reverse=shown.best is max)
    is_contest = shown.best is not None and len(known) > 1
    return [known.index(_text(mean, shown)) if is_contest and mean is not None else None for mean in finite]


def _in_markdown(text: str) -> str:
    """On one line, and without what Markdown (or GitHub, which reads formulas) would take for its own."""
    return re.sub(r"([\\`*|<$\[\]])", r"\\\1", " ".join(text.splitlines()))


def _escaped(text: str) -> str:
    special = {character: f"\\{character}" for character in "&%$#_{}"}
    special |= {"\\": r"\textbackslash{}", "^": r"\textasciicircum{}", "~": r"\textasciitilde{}"}
    special |= {character: f"${character}$" for character in "<>|"}
    special |= {"*": "$^*$", "±": r"$\pm$", "−": "$-$", "×": r"$\times$"}
    return " ".join(text.splitlines()).translate(str.maketrans(special))

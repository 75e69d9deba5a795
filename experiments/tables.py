"""A table of results, as Markdown, LaTeX and CSV."""

import csv
import io
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple


class Value(NamedTuple):
    """A figure over seeds: its mean, and its population deviation where there are several."""

    mean: float
    std: float | None = None


class Table(NamedTuple):
    """rows: (label, a value for each column, None where it was not measured). Larger is better; shown in per cent."""

    name: str  # what its files are called
    title: str
    columns: list[str]
    rows: list[tuple[str, list[Value | None]]]


SUMMARIES = ("mean", "worst")
"""The columns behind those that they are taken over."""


def narrowed(table: Table, most: int) -> Table:
    """The table, with its summaries alone where it has more columns than `most`."""
    if len(table.columns) <= most or not set(SUMMARIES) <= set(table.columns):
        return table
    kept = [table.columns.index(name) for name in SUMMARIES]
    rows = [(label, [values[index] for index in kept]) for label, values in table.rows]
    title = f"{table.title} (all {len(table.columns) - len(kept)} columns: {table.name}.md)"
    return Table(table.name, title, list(SUMMARIES), rows)


def markdown(table: Table) -> str:
    """The best of a column in bold, the second best underlined."""
    body = _marked(table, best="**{}**".format, second="<u>{}</u>".format, between=" ± ")
    lines = [["", *table.columns], ["---"] + ["---:"] * len(table.columns), *body]
    return f"{table.title}\n\n" + "".join(f"| {' | '.join(line)} |\n" for line in lines)


def latex(table: Table) -> str:
    r"""A tabular with the rules of the package booktabs; the best of a column \textbf, the second best \underline."""
    body = _marked(table, best=r"\textbf{{{}}}".format, second=r"\underline{{{}}}".format, between=r" $\pm$ ")
    head = ["", *map(_escaped, table.columns)]
    body = [[_escaped(label), *cells] for label, *cells in body]
    rows = [" & ".join(line) + r" \\" for line in (head, *body)]
    lines = [
        f"% {table.title}",
        rf"\begin{{tabular}}{{l{'r' * len(table.columns)}}}",
        r"\toprule",
        rows[0],
        r"\midrule",
        *rows[1:],
        r"\bottomrule",
        r"\end{tabular}",
    ]
    return "\n".join(lines) + "\n"


def comma_separated(table: Table) -> str:
    """A line for every cell, as fractions and with all digits: row, column, mean, std."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["row", "column", "mean", "std"])
    for label, values in table.rows:
        for column, value in zip(table.columns, values, strict=True):
            mean, std = value or ("", None)
            writer.writerow([label, column, mean, "" if std is None else std])
    return text.getvalue()


WRITERS: dict[str, Callable[[Table], str]] = {".md": markdown, ".tex": latex, ".csv": comma_separated}


def _marked(table: Table, best: Callable[[str], str], second: Callable[[str], str], between: str) -> list[list[str]]:
    columns = [_ranked([values[i] for _, values in table.rows]) for i in range(len(table.columns))]
    marks = {0: best, 1: second}
    return [
        [label]
        + [marks.get(columns[i][row], str)(_text(value, between)) if value else "" for i, value in enumerate(values)]
        for row, (label, values) in enumerate(table.rows)
    ]


def _text(value: Value, between: str) -> str:
    mean = _per_cent(value.mean)
    return mean if value.std is None else mean + between + _per_cent(value.std)


def _per_cent(value: float) -> str:
    return f"{100 * value:.1f}" if math.isfinite(value) else "not finite"


def _ranked(values: Sequence[Value | None]) -> list[int | None]:
    """0 for the best, 1 for the second best, ...: equal as shown is equal; nothing is best alone."""
    shown = [float(_per_cent(v.mean)) if v and math.isfinite(v.mean) else None for v in values]
    known = sorted({each for each in shown if each is not None}, reverse=True)
    is_contest = sum(each is not None for each in shown) > 1
    return [known.index(each) if is_contest and each is not None else None for each in shown]


def _escaped(text: str) -> str:
    special = {character: f"\\{character}" for character in "&%$#_{}"} | {"\\": r"\textbackslash{}"}
    return text.translate(str.maketrans(special))

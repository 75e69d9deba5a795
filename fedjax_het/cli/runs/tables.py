"""Tables of the scores of runs, and any table as Markdown, LaTeX and CSV."""

import math
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import product
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from fedjax_het.cli.runs import data_usage, json_files
from fedjax_het.cli.runs.results import RunResults, client_scores, requested_metrics
from fedjax_het.cli.runs.run_files import PER_CLIENT
from fedjax_het.engine import METRICS, compute_statistics, main_score
from fedjax_het.errors import InputError


class Value(NamedTuple):
    """A figure over seeds."""

    mean: float
    std: float | None = None  # the population's; None for one seed
    stars: str = ""  # of a test of significance
    num_seeds: int | None = None  # None where it is not known

    @classmethod
    def of(cls, seeds: Iterable[float], stars: str = "") -> "Value":
        values = np.asarray(list(seeds), float)
        return cls(float(values.mean()), float(values.std()) if len(values) > 1 else None, stars, len(values))

    @property
    def few_seeds(self) -> str:
        """Name the number of seeds where it is too small for a deviation to say much: " (2 seeds)", or ""."""
        return f" ({self.num_seeds} seed{'s' * (self.num_seeds > 1)})" if self.num_seeds in (1, 2) else ""


class ColumnFormat(NamedTuple):
    """How a column's figures are written, and which is best: max, min, or None for neither."""

    text: Callable[[float], str]
    best: Callable[[Iterable[float]], float] | None = None


PER_CENT = ColumnFormat(lambda value: f"{100 * value:.1f}", max)


def score_format(score: str) -> ColumnFormat:
    """Return the format of "accuracy", "dice" or another metric: in per cent, or in its unit."""
    if score not in METRICS:
        return PER_CENT
    metric = METRICS[score]
    form = ".2f" if metric.unit == "pixels" else ".4g"
    text = PER_CENT.text if metric.unit == "fraction" else lambda value: f"{value:{form}}"
    return ColumnFormat(text, max if metric.is_larger_better else min)


def score_title(score: str) -> str:
    """Return the title of "accuracy", "dice" or a requested metric, with its unit where it has one."""
    if score in METRICS:
        unit = METRICS[score].unit
        return METRICS[score].title + (f" in {unit}" if unit in ("pixels", "ranks") else "")
    return {"dice": "Dice", "accuracy": "accuracy"}[score]


class Table(NamedTuple):
    """rows: (label, a value or a text for each column, None where it was not measured)."""

    name: str  # the stem of its file names
    title: str
    columns: list[str]
    rows: Sequence[tuple[str, Sequence[Value | str | None]]]
    formats: Mapping[str, ColumnFormat] = MappingProxyType({})  # by column; per cent, the larger the better by default
    note: str = ""

    @classmethod
    def from_columns(
        cls,
        name: str,
        title: str,
        labels: Sequence[str],
        columns: Mapping[str, Sequence[Value | str | None]],
        formats: Mapping[str, ColumnFormat] = MappingProxyType({}),
        note: str = "",
    ) -> "Table":
        """Make a table from {column: its values}, without columns and rows that have no value."""
        known = {column: values for column, values in columns.items() if any(value is not None for value in values)}
        rows = [(label, [values[i] for values in known.values()]) for i, label in enumerate(labels)]
        rows = [(label, row) for label, row in rows if any(value is not None for value in row)]
        return cls(name, title, list(known), rows, formats, note)


class Cell(NamedTuple):
    text: str
    rank: int | None = None  # 0 for the best of its column, 1 for the second best
    key: float | None = None  # the number that a column is sorted by


_MAX_COLUMNS = 8  # of a table on a terminal or a page
SUMMARIES = {"mean": "mean", "deviation": "std", "worst": "min"}
"""{last columns, which summarize the columns before them: their statistics, see `engine.compute_statistics`}."""
CLIENT_SUMMARIES = {**SUMMARIES, "worst tenth": "worst10", "Jain": "jain", "Gini": "gini"}
"""The same of columns that are clients."""
INDEX_FORMATS = {name: ColumnFormat("{:.3f}".format, best) for name, best in (("Jain", max), ("Gini", min))}


# ---- writing ---------------------------------------------------------------------------------------------------------
def make_cells(table: Table) -> list[list[Cell]]:
    """Format all values of a table."""
    columns = []
    for i, name in enumerate(table.columns):
        form = table.formats.get(name, PER_CENT)
        values = [row[i] for _, row in table.rows]
        columns.append([_make_cell(*cell, form) for cell in zip(values, _rank(values, form), strict=True)])
    return [[column[row] for column in columns] for row in range(len(table.rows))]


def narrow(table: Table) -> Table:
    """Reduce a table that is too wide for a terminal or a page to its summaries."""
    if len(table.columns) <= _MAX_COLUMNS or not set(SUMMARIES) <= set(table.columns):
        return table
    columns = [name for name in CLIENT_SUMMARIES if name in table.columns]
    kept = [table.columns.index(name) for name in columns]
    rows = [(label, [values[index] for index in kept]) for label, values in table.rows]
    title = f"{table.title} (all {len(table.columns) - len(kept)} columns: {table.name}.md)"
    return table._replace(title=title, columns=columns, rows=rows)


def to_markdown(table: Table) -> str:
    """Write a table as Markdown: the best of a column in bold, the second best underlined."""
    body = _format_rows(table, best="**{}**".format, second="<u>{}</u>".format, escape=_escape_markdown)
    lines = [["", *map(_escape_markdown, table.columns)], ["---"] + ["---:"] * len(table.columns), *body]
    note = f"\n{table.note}\n" if table.note else ""
    return f"{_escape_markdown(table.title)}\n\n" + "".join(f"| {' | '.join(line)} |\n" for line in lines) + note


def to_latex(table: Table) -> str:
    r"""Write a table as a tabular with the rules of booktabs: the best \textbf, the second best \underline.

    A table that is too wide for a page is reduced to its summaries.
    """
    table = narrow(table)
    body = _format_rows(table, best=r"\textbf{{{}}}".format, second=r"\underline{{{}}}".format, escape=_escape_latex)
    head = ["", *map(_escape_latex, table.columns)]
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
    """Write one line per cell with all digits (fractions, not per cent; bytes, seconds): row, column, mean, std."""
    rows = []
    for label, values in table.rows:
        for column, value in zip(table.columns, values, strict=True):
            mean, std = value[:2] if isinstance(value, Value) else (value, None)
            rows.append((label, column, mean, std))
    return json_files.to_csv(("row", "column", "mean", "std"), rows)


WRITERS: dict[str, Callable[[Table], str]] = {".md": to_markdown, ".tex": to_latex, ".csv": to_csv}

_Format = Callable[[str], str]


def _format_rows(table: Table, best: _Format, second: _Format, escape: _Format) -> list[list[str]]:
    marks: dict[int | None, _Format] = {0: best, 1: second}
    return [
        [escape(label), *(marks.get(cell.rank, str)(escape(cell.text)) for cell in row)]
        for (label, _), row in zip(table.rows, make_cells(table), strict=True)
    ]


def _make_cell(value: Value | str | None, rank: int | None, form: ColumnFormat) -> Cell:
    if not isinstance(value, Value):
        return Cell(value or "")
    mean = _format_number(value.mean, form)
    spread = "" if value.std is None else f" ± {_format_number(value.std, form)}{value.few_seeds}"
    return Cell(f"{mean}{spread}{value.stars}", rank, value.mean if math.isfinite(value.mean) else None)


def _format_number(value: float, form: ColumnFormat) -> str:
    return form.text(value) if math.isfinite(value) else "not finite"


def _rank(values: Sequence[Value | str | None], form: ColumnFormat) -> list[int | None]:
    """Rank the values from 0, the best. Values with the same text are equal; if all are, none has a rank."""
    finite = [v.mean if isinstance(v, Value) and math.isfinite(v.mean) else None for v in values]
    means = {_format_number(mean, form): mean for mean in finite if mean is not None}
    ordered = sorted(means, key=means.__getitem__, reverse=form.best is max)
    has_ranks = form.best is not None and len(ordered) > 1
    return [ordered.index(_format_number(mean, form)) if has_ranks and mean is not None else None for mean in finite]


def _escape_markdown(text: str) -> str:
    """Escape what Markdown, or GitHub's formulas, would interpret, and join lines."""
    return re.sub(r"([\\`*|<$\[\]])", r"\\\1", " ".join(text.splitlines()))


def _escape_latex(text: str) -> str:
    special = {character: f"\\{character}" for character in "&%$#_{}"}
    special |= {"\\": r"\textbackslash{}", "^": r"\textasciicircum{}", "~": r"\textasciitilde{}"}
    special |= {character: f"${character}$" for character in "<>|"}
    special |= {"*": "$^*$", "±": r"$\pm$", "−": "$-$", "×": r"$\times$"}
    return " ".join(text.splitlines()).translate(str.maketrans(special))


# ---- scores of runs --------------------------------------------------------------------------------------------------
Figures = dict[str, dict[str, list[float]]]
"""{row: {column: one value per seed}}, in the order of the runs."""

_WHEN = {"final": "after the last round", "selected": "of the round that was best on the clients' validation examples"}


class LabeledRun(NamedTuple):
    """A run and the label of its row in a table; runs of one row have other seeds, or leave out another domain."""

    label: str
    results: RunResults
    left_out: str = ""  # the domain, where each is left out in turn


def result_tables(runs: Sequence[LabeledRun]) -> list[Table]:
    """Tabulate all scores that the runs have: after the last round, and of the selected round where there is one."""
    scores = [None, *requested_metrics(name for run in runs for name in run.results.final)]
    parts = product(scores, _WHEN, ("unseen", "test"))
    tables = [_tabulate_server_scores(runs, kind, when, score) for score, when, kind in parts]
    return [table for table in tables + client_tables(runs) if table.columns]


def client_tables(runs: Sequence[LabeledRun]) -> list[Table]:
    """Tabulate the scores of the clients: one column per client."""
    scores = [None, *requested_metrics(name for run in runs for name in run.results.final)]
    return [_tabulate_client_scores(runs, kind, score) for score in scores for kind in data_usage.CLIENT_GROUPS]


def _tabulate_server_scores(runs: Sequence[LabeledRun], kind: str, when: str, requested: str | None) -> Table:
    """Tabulate the requested metric, or else accuracy or Dice."""
    figures: Figures = defaultdict(dict)
    score = requested or "accuracy"
    for label, results, left_out in runs:
        part = (results.summary or {}).get(when) or {}
        part = part.get("figures", part)
        score = requested or main_score(part)
        for name, figure in part.items():
            group, _, rest = name.partition("/")
            place, _, figure_name = rest.rpartition("/")
            if group == kind and figure_name == score:
                column = place or (f"without {left_out}" if left_out else kind)
                figures[label].setdefault(column, []).extend(figure["seeds"])
    name = "_".join(filter(None, [kind, "" if when == "final" else when, requested]))
    return _make_table(runs, kind, name, _WHEN[when], score, figures)


def _tabulate_client_scores(runs: Sequence[LabeledRun], kind: str, requested: str | None) -> Table:
    """Tabulate the requested metric, or else accuracy or Dice."""
    for _, results, _ in runs:
        if not results.clients:
            raise InputError(f"{results.directory / PER_CLIENT}: it is gone. The command of the run writes it.")
    score = requested or main_score(name for _, results, _ in runs for name in results.clients[0])
    figures: Figures = {}
    for label in dict.fromkeys(run.label for run in runs):
        if scores := client_scores((run.results for run in runs if run.label == label), kind, score):
            figures[label] = {client: list(seeds.values()) for client, seeds in scores.items()}
    over = ", mean over the other domains left out" if any(run.left_out for run in runs) else ""
    name = "_".join(filter(None, [kind, requested]))
    return _make_table(runs, kind, name, _WHEN["final"] + over, score, figures)


def _make_table(runs: Sequence[LabeledRun], kind: str, name: str, when: str, score: str, figures: Figures) -> Table:
    """Make a table with statistics over the columns, seed by seed."""
    form = score_format(score)
    summaries = CLIENT_SUMMARIES if kind in data_usage.CLIENT_GROUPS else SUMMARIES
    if form.best is min:
        summaries = summaries | {"worst": "max"}
    columns = list(dict.fromkeys(column for row in figures.values() for column in row))
    extra = list(summaries) if len(columns) > 1 else []
    rows = []
    for label, row in figures.items():
        values = [Value.of(row[column]) if column in row else None for column in columns]
        is_whole = len(row) == len(columns) and len({len(seeds) for seeds in row.values()}) == 1
        stack = np.transpose([row[column] for column in columns]) if is_whole else np.zeros((0, 1))
        statistics = compute_statistics(stack, is_larger_better=form.best is not min)
        values += [Value.of(statistics[summaries[name]]) if is_whole else None for name in extra]
        rows.append((label, values))
    formats = dict.fromkeys(columns + extra, form) | {"deviation": ColumnFormat(form.text)} | INDEX_FORMATS
    shown = [(run.label, run.left_out, run.results.partition) for run in runs if run.label in figures]
    note = data_usage.describe_runs(shown, [kind])
    title = f"{score_title(score)} of {data_usage.GROUPS[kind].description}, {when}"
    title = title[0].upper() + title[1:]
    return Table(name, title, columns + extra, rows, formats, note)

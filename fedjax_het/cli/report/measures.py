"""The final figures of each row, seed by seed: after the last round, and of the round selected by validation."""

from collections.abc import Mapping, Sequence

import numpy as np

from fedjax_het.cli.report.rows import Row, figure_names, find_score, left_out
from fedjax_het.cli.runs import data_usage, records
from fedjax_het.cli.runs.data_usage import GROUPS, find_figures
from fedjax_het.cli.runs.results import requested_metrics
from fedjax_het.cli.runs.run_files import Json
from fedjax_het.cli.runs.tables import PER_CENT, ColumnFormat, Table, Value, score_format, score_title

Seeds = dict[int, float]
LAST, SELECTED = "last", "selected"
_WEIGHTED = ", weighted"
_OVER_DOMAINS = ("unseen, mean", "unseen, deviation", "unseen, worst")
_NOTE = (
    "The server's model unless own models are named. Mean ± population standard deviation over seeds; clients: mean "
    "over clients; weighted: by their test examples."
)
_WHEN = (
    " last: after the last round. selected: the best round on the clients' validation examples, independent of test "
    "examples."
)


def read_figures(row: Row, when: str, score: str) -> dict[str, Seeds]:
    """Return {column: {seed: value}}; where domains are left out in turn, the mean of the runs that have the figure.

    Args:
        row: the row.
        when: `LAST` or `SELECTED`.
        score: "accuracy", "dice", or a requested metric.
    """
    values: dict[str, dict[int, list[float]]] = {}
    for run in row.runs:
        figures, seeds = _figures(run.lines, when), sorted({line["seed"] for line in run.lines})
        for name, column in _columns_of_figures(figures, score).items():
            for seed, value in zip(seeds, figures[name]["seeds"], strict=True):
                values.setdefault(column, {}).setdefault(seed, []).append(value)
    means = {column: {s: float(np.mean(v)) for s, v in seeds.items()} for column, seeds in values.items()}
    unseen = [column for column in means if column.startswith("unseen ")]
    if len(unseen) > 1:
        everywhere = set.intersection(*(set(means[column]) for column in unseen))
        worst = np.min if score_format(score).best is max else np.max
        for name, over in zip(_OVER_DOMAINS, (np.mean, np.std, worst), strict=True):
            means[name] = {seed: float(over([means[column][seed] for column in unseen])) for seed in sorted(everywhere)}
    return means


def _figures(lines: list[Json], when: str) -> Json:
    if not lines:
        return {}
    return records.final_figures(lines) if when == LAST else (records.selected_figures(lines) or {}).get("figures", {})


def _columns_of_figures(figures: Mapping, score: str) -> dict[str, str]:
    """Return {name in metrics.jsonl: column}, in the order of the columns."""
    columns = {name: title for name, title, _ in find_figures(figures, score) if not name.startswith("valid/")}
    weighted = f"clients/{score}_weighted"
    return columns | ({weighted: GROUPS["clients"].title + _WEIGHTED} if weighted in figures else {})


def order_columns(names: Sequence[str]) -> list[str]:
    """Order columns: the unseen domains first, then their mean, deviation and worst, then the others."""
    known = [*_OVER_DOMAINS, *(group.title + over for group in GROUPS.values() for over in ("", _WEIGHTED))]
    return sorted(dict.fromkeys(names), key=lambda name: known.index(name) if name in known else -1)


def make_metric_tables(rows: Sequence[Row]) -> list[Table]:
    """Tabulate each requested metric as `make_table` does accuracy, without stars."""
    return [make_table(rows, {}, "", metric) for metric in requested_metrics(figure_names(rows))]


def make_table(
    rows: Sequence[Row], stars: Mapping[tuple[str, str, str], str], note: str, metric: str | None = None
) -> Table:
    """Tabulate the final figures after the last round, and of the selected round where any row has one.

    Args:
        rows: the rows of one data set.
        stars: {(label, column, when): "*"} of significant differences.
        note: the meaning of the stars.
        metric: a requested metric; None is accuracy or Dice.
    """
    score = metric or find_score(rows)
    form = score_format(score)
    figures = {when: [read_figures(row, when, score) for row in rows] for when in (LAST, SELECTED)}
    columns = {}
    for name in order_columns([name for row_figures in figures[LAST] for name in row_figures]):
        is_selected = any(name in row_figures for row_figures in figures[SELECTED])
        for when in (LAST, SELECTED) if is_selected else (LAST,):
            columns[f"{name}, {when}" if is_selected else name] = (name, when)
    body = []
    for i, row in enumerate(rows):
        seeds = [figures[when][i].get(name, {}).values() for name, when in columns.values()]
        marks = [stars.get((row.label, *place), "") for place in columns.values()]
        body.append((row.label, [Value.of(*value) if value[0] else None for value in zip(seeds, marks, strict=True)]))
    note = " ".join(filter(None, [_NOTE + (_WHEN if any(figures[SELECTED]) else ""), _describe_data(rows), note]))
    title = f"Final figures: {score_title(score)}{' in per cent' if form.text is PER_CENT.text else ''}"
    deviations = [column for column, (name, _) in columns.items() if name == _OVER_DOMAINS[1]]
    formats = dict.fromkeys(columns, form) | dict.fromkeys(deviations, ColumnFormat(form.text))
    return Table(f"results_{metric}" if metric else "results", title, list(columns), body, formats, note)


def _describe_data(rows: Sequence[Row]) -> str:
    """Describe the examples that each row is trained on and measured on."""
    runs = [(row.label, left_out(run), run.partition) for row in rows for run in row.runs]
    groups = [group.partition("/")[0] for group in data_usage.groups_of(figure_names(rows))]
    return data_usage.describe_runs(runs, list(dict.fromkeys(groups)))

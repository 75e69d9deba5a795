"""The page of verdicts: a CSV file of each experiment's values, and tables of verdicts that are made of these files."""

import csv
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ..runs import json_files
from ..study.comparison import Interval
from .spec import Experiment
from .verdicts import Line, Values, judge

_HEADER = ("method", "column", "measure", "chosen", "seeds")
_BLOCK = r"(<!-- {name}: made by python -m experiments.claims -->\n).*?(?=<!-- end -->)"


class Row(NamedTuple):
    """The values of one method in one column: a line of a CSV file."""

    method: str
    column: str
    measure: str
    chosen: str  # the trial that validation examples have chosen, or why there are no values
    seeds: Sequence[float]


def write_rows(path: Path, rows: Sequence[Row]) -> None:
    """Write the values of an experiment."""
    lines = [(*row[:4], ";".join(f"{value:.6g}" for value in row.seeds)) for row in rows]
    json_files.write(path, json_files.to_csv(_HEADER, lines))


def read_rows(path: Path) -> list[Row]:
    """Read the values of an experiment; none where it has not been run."""
    if not path.is_file():
        return []
    with path.open() as file:
        read = list(csv.DictReader(file))

    def make_row(cells: Mapping[str, str]) -> Row:
        seeds = [float(text) for text in cells["seeds"].split(";") if text]
        return Row(cells["method"], cells["column"], cells["measure"], cells["chosen"], seeds)

    return list(map(make_row, read))


def average_columns(experiment: Experiment, rows: Sequence[Row]) -> Values:
    """Average each method's values over the columns, seed by seed; leave out what is not there in all of them."""
    found: dict[tuple[str, str], dict[str, Sequence[float]]] = defaultdict(dict)
    for row in rows:
        if row.seeds:
            found[row.measure, row.method][row.column] = row.seeds
    whole = {key: of for key, of in found.items() if of.keys() == experiment.columns.keys()}
    return {key: np.mean(list(of.values()), axis=0).tolist() for key, of in whole.items()}


def judge_all(experiment: Experiment, rows: Sequence[Row]) -> list[Line]:
    """Judge all claims of an experiment."""
    values = average_columns(experiment, rows)
    return [
        line for claim in experiment.claims for line in judge(claim, experiment.quantities[claim.quantity][0], values)
    ]


def write_page(page: Path, folder: Path, topics: Mapping[str, Mapping[str, Experiment]]) -> None:
    """Write the tables of verdicts into the page, each between its marks, and all verdicts as CSV.

    Args:
        page: a Markdown file with the marks.
        folder: of the CSV files.
        topics: {the name of a mark: {the stem of a CSV file: experiment}}.
    """
    text, verdicts = page.read_text(), []
    for topic, experiments in topics.items():
        parts = []
        for name, experiment in experiments.items():
            rows = read_rows(folder / f"{name}.csv")
            lines = judge_all(experiment, rows)
            verdicts += [(name, *_to_cells(line)) for line in lines]
            parts.append(_describe(name, experiment, rows, lines, folder.name))
        text = re.sub(
            _BLOCK.format(name=topic), lambda found, parts=parts: found[1] + "\n".join(parts), text, flags=re.S
        )
    header = ("experiment", "claim", "source", "verdict", "quantity", "difference", "half width", "method", "other")
    json_files.write(folder / "verdicts.csv", json_files.to_csv(header, verdicts))
    json_files.write(page, text)


def _to_cells(line: Line) -> tuple:
    numbers = [f"{x:.6g}" for x in line.difference or ()] or ["", ""]
    sides = [f"{side.mean:.6g}" for side in (line.method, line.other) if side] or ["", ""]
    return line.text, line.source, line.verdict, line.quantity.title if line.quantity else "", *numbers, *sides


def _describe(name: str, experiment: Experiment, rows: Sequence[Row], lines: Sequence[Line], folder: str) -> str:
    """Write an experiment: its setting, how that differs from the paper's, and a row per verdict."""
    table = ["| claim | verdict | difference | it | the other |", "| --- | --- | ---: | ---: | ---: |"]
    for line in lines:
        digits = line.quantity.digits if line.quantity else 0
        numbers = [_format(each, digits) for each in (line.difference, line.method, line.other)]
        what = f": {line.quantity.title}" if line.quantity else ""
        table.append(f"| {line.text}{what} ({line.source}) | **{line.verdict}** | {' | '.join(numbers)} |")
    done = {method for _, method in average_columns(experiment, rows)}
    parts = [
        f"### {experiment.title}",
        f"{experiment.setting}. {_describe_budget(experiment, rows)}",
        f"Reduced; what differs from the paper: {experiment.differs}.",
        "\n".join(table),
    ]
    if rows:
        parts.append(f"Values of each seed: [`{name}.csv`]({folder}/{name}.csv). {_list_choices(experiment, rows)}")
    if missing := [method for method in experiment.methods if method not in done]:
        parts.append(f"Not yet run: {', '.join(missing)}.")
    return "\n" + "\n\n".join(parts) + "\n"


def _describe_budget(experiment: Experiment, rows: Sequence[Row]) -> str:
    counts = sorted({len(row.seeds) for row in rows if row.seeds})
    refits = f"{' or '.join(map(str, counts)) or '5'} seeds compared"
    return (
        f"{len(experiment.rates)} learning rates tried with one other seed, {refits}."
        if experiment.rates
        else f"{refits}."
    )


def _list_choices(experiment: Experiment, rows: Sequence[Row]) -> str:
    """List the learning rates that validation examples chose, those of the columns in their order."""
    chosen: dict[str, dict[str, str]] = defaultdict(dict)
    for row in rows:
        chosen[row.method][row.column] = row.chosen.removeprefix("learning_rate=")
    if not experiment.rates:
        return ""
    return (
        "Learning rates chosen: " + "; ".join(f"{name} {', '.join(of.values())}" for name, of in chosen.items()) + "."
    )


def _format(interval: Interval | None, digits: int) -> str:
    return "" if interval is None else f"{interval.mean:.{digits}f} ± {interval.half_width:.{digits}f}"

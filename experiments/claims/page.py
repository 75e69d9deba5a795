"""The page of verdicts: a CSV file of each experiment's values, and tables of verdicts that are made of these files."""

import csv
import re
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedjax_het.cli.runs import json_files
from fedjax_het.cli.study.comparison import Interval
from fedjax_het.errors import InputError

from .spec import Experiment
from .verdicts import Line, Values, judge

_COMMAND = "python -m experiments.claims"
_HEADER = ("method", "column", "measure", "chosen", "seeds")


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


def check_page(page: Path, topics: Collection[str]) -> None:
    """Raises InputError where a page lacks a place for its tables."""
    fill_blocks(page, _COMMAND, dict.fromkeys([*topics, "summary"], ""))


def write_page(page: Path, folder: Path, topics: Mapping[str, Mapping[str, Experiment]]) -> None:
    """Write the tables of verdicts into the page, each between its marks, and all verdicts as CSV.

    Args:
        page: a Markdown file with places for the tables, see `fill_blocks`.
        folder: of the CSV files.
        topics: {the name of a mark: {the stem of a CSV file: experiment}}.
    """
    blocks, verdicts = {}, []
    summary = ["| experiment | claim | verdict | difference |", "| --- | --- | --- | ---: |"]
    for topic, experiments in topics.items():
        parts = []
        for name, experiment in experiments.items():
            rows = read_rows(folder / f"{name}.csv")
            values = average_columns(experiment, rows)
            judged = [judge(each, experiment.quantities[each.quantity][0], values) for each in experiment.claims]
            lines = [line for of_claim in judged for line in of_claim]
            verdicts += [(name, *_to_cells(line)) for line in lines]
            of_paper = [of_claim[0] for of_claim in judged if of_claim[0].source]
            summary += [f"| {experiment.title} | {' | '.join(_summarize(line))} |" for line in of_paper]
            done = {method for _, method in values}
            parts.append(_describe(name, experiment, rows, done, lines, folder.name))
        blocks[topic] = "\n".join(parts)
    blocks["summary"] = "\n".join(summary)
    text = fill_blocks(page, _COMMAND, blocks)
    header = ("experiment", "claim", "source", "verdict", "quantity", "difference", "half width", "method", "other")
    json_files.write(folder / "verdicts.csv", json_files.to_csv(header, verdicts))
    json_files.write(page, text)


def _summarize(line: Line) -> tuple[str, str, str]:
    """The claim, the verdict, and the difference or how many of the others it holds against."""
    difference = line.count or _format(line.difference, line.quantity.digits)
    source = f" ({line.source})" if line.source else ""
    return f"{line.text}: {line.quantity.title}{source}", f"**{line.verdict}**", difference


def _to_cells(line: Line) -> tuple:
    numbers = [f"{x:.6g}" for x in line.difference or ()] or ["", ""]
    sides = [f"{side.mean:.6g}" for side in (line.method, line.other) if side] or ["", ""]
    return line.text, line.source, line.verdict, line.quantity.title, *numbers, *sides


def _describe(
    name: str, experiment: Experiment, rows: Sequence[Row], done: set[str], lines: Sequence[Line], folder: str
) -> str:
    """Write an experiment: its setting, how that differs from the paper's, and a row per verdict; `done` are the
    methods with values in all columns."""
    table = ["| claim | verdict | difference | it | the other |", "| --- | --- | ---: | ---: | ---: |"]
    for line in lines:
        sides = [_format(each, line.quantity.digits) for each in (line.method, line.other)]
        table.append(f"| {' | '.join((*_summarize(line), *sides))} |")
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
    return "\n" + "\n\n".join(parts)


def _describe_budget(experiment: Experiment, rows: Sequence[Row]) -> str:
    counts = sorted({len(row.seeds) for row in rows if row.seeds})
    seeds = f"{' or '.join(map(str, counts)) or 'No'} seeds compared."
    return (
        f"Learning rates {', '.join(experiment.rates)}, each with one other seed. {seeds}"
        if experiment.rates
        else seeds
    )


def _list_choices(experiment: Experiment, rows: Sequence[Row]) -> str:
    """List the learning rates that validation examples chose, those of the columns in their order."""
    chosen: dict[str, dict[str, str]] = defaultdict(dict)
    for row in rows:
        chosen[row.method][row.column] = row.chosen.removeprefix("learning_rate=")
    if not experiment.rates:
        return ""
    ends = {experiment.rates[0], experiment.rates[-1]}
    text = "; ".join(f"{name} {', '.join(of_columns.values())}" for name, of_columns in chosen.items())
    at_end = [name for name, of_columns in chosen.items() if ends & set(of_columns.values())]
    note = f" At an end of those tried, so that a better one may lie beyond: {', '.join(at_end)}." if at_end else ""
    return f"Learning rates chosen: {text}.{note}"


def _format(interval: Interval | None, digits: int) -> str:
    return "" if interval is None else f"{interval.mean:.{digits}f} ± {interval.half_width:.{digits}f}"


def fill_blocks(page: Path, command: str, blocks: Mapping[str, str]) -> str:
    """Return the text of a page with the blocks in their places; the file stays as it is.

    Args:
        page: a Markdown file.
        command: that makes the blocks, such as `python -m docs.page_tables`.
        blocks: {name: Markdown}.

    Raises:
        InputError: The page has no place for a block, or several.
    """
    text, end = page.read_text(), "<!-- end -->"
    for name, block in blocks.items():
        start = f"<!-- {name}: made by {command} -->\n"
        filled = f"{start}\n{block.strip()}\n\n{end}"
        text, count = re.subn(f"{re.escape(start)}.*?{end}", lambda _, new=filled: new, text, flags=re.DOTALL)
        if count != 1:
            raise InputError(f"{page}: there are {count} places between '{start.strip()}' and '{end}'. Make it one.")
    return text

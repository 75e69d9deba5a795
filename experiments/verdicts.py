"""Verdicts on claims, by a rule that was fixed before anything was trained.

The difference between the two sides of a claim, per seed and positive in the direction of the claim, has a mean and a
95 % interval (Student's t):

    the interval is above 0                                   -> holds
    the interval is below 0, or within the margin around 0    -> does not hold
    otherwise                                                 -> cannot tell

The margin is the largest negligible difference. A claim against several methods holds if it holds against each of
them. It does not hold if it fails against one of them, where a difference in the other direction counts after Holm's
correction for their number.
"""

import itertools
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedjax_het.cli.runs import json_files
from fedjax_het.cli.study.comparison import Interval, correct_by_holm, paired_p_value

from .run import average_columns
from .spec import Claim, Entry, Experiment, Quantity
from .tables import fill_blocks, read_csv

HOLDS, FAILS, OPEN, NOT_RUN = "holds", "does not hold", "cannot tell", "not yet run"
_LEVEL = 0.05
_COMMAND = "python -m experiments.claims"


class Line(NamedTuple):
    """A verdict on a claim against one other method, or against all of them, which has no numbers of its own."""

    text: str
    source: str
    verdict: str
    quantity: Quantity
    difference: Interval | None = None  # in the direction of the claim
    method: Interval | None = None
    other: Interval | None = None
    count: str = ""  # of a verdict against all methods: the number of them for which it holds


Values = Mapping[tuple[str, str], Sequence[float]]
"""{(name of a measure, method): one value per seed}, means over columns; what has not been run is missing."""


def decide(difference: Interval, margin: float) -> str:
    """Decide on one difference, which is positive in the direction of the claim.

    Args:
        difference: its mean and interval; without an interval nothing is decided.
        margin: the largest negligible difference.
    """
    if difference.mean - difference.half_width > 0:
        return HOLDS
    if difference.mean + difference.half_width < 0 or _is_negligible(difference, margin):
        return FAILS
    return OPEN


def decide_all(differences: Sequence[Sequence[float]], margins: Sequence[float]) -> str:
    """Decide whether a claim holds against every other method.

    Args:
        differences: the differences from each other method, one per seed; none if one of the two has not been run.
        margins: the margin of each.
    """
    known = [(values, margin) for values, margin in zip(differences, margins, strict=True) if values]
    p_values = correct_by_holm([paired_p_value(values, [0.0] * len(values)) for values, _ in known])
    verdicts = []
    for (values, margin), p in zip(known, p_values, strict=True):
        difference = Interval.of(values)
        verdicts.append(decide(difference, margin))
        if verdicts[-1] == FAILS and (p < _LEVEL or _is_negligible(difference, margin)):
            return FAILS
    if len(known) < len(differences):
        return NOT_RUN
    return HOLDS if set(verdicts) == {HOLDS} else OPEN


def _is_negligible(difference: Interval, margin: float) -> bool:
    return abs(difference.mean) + difference.half_width <= margin


def judge(claim: Claim, quantity: Quantity, values: Values) -> list[Line]:
    """Judge a claim against each other method and, where there are several, against all of them."""
    lines, differences, margins = [], [], []
    better = values.get((claim.quantity, claim.method), ())
    for name in claim.others:
        other = values.get((claim.quantity, name), ())
        text = f"{claim.text} {name}"
        difference = _subtract(better, other, quantity) if len(better) and len(other) else []
        margin = quantity.margin
        if difference and quantity.is_relative:
            margin *= abs(Interval.of(other).mean)
        differences.append(difference)
        margins.append(margin)
        if not difference:
            lines.append(Line(text, claim.source, NOT_RUN, quantity))
            continue
        sides = Interval.of(better), Interval.of(other)
        found = Interval.of(difference)
        lines.append(Line(text, claim.source, decide(found, margin), quantity, found, *sides))
    if len(lines) > 1:
        run = [line.verdict for line in lines if line.verdict != NOT_RUN]
        count = f"{run.count(HOLDS)} of {len(run)} hold" if run else ""
        text = f"{claim.text} all of {', '.join(claim.others)}"
        lines.insert(0, Line(text, claim.source, decide_all(differences, margins), quantity, count=count))
    return lines


def _subtract(better: Sequence[float], other: Sequence[float], quantity: Quantity) -> list[float]:
    difference = np.subtract(better, other) * (-1 if quantity.is_lower else 1)
    return difference.tolist()


# ---- the page --------------------------------------------------------------------------------------------------------
def load_entries(path: Path) -> list[Entry]:
    """Read the results of an experiment; none if it has not been run."""
    return read_csv(path.read_text()) if path.is_file() else []


def read_values(experiment: Experiment, entries: Sequence[Entry]) -> dict[tuple[str, str], list[float]]:
    """Average the values of each measure and row over the columns, seed by seed; leave out incomplete ones."""
    columns, values = experiment.scales["cpu"].columns, {}
    for measure, row in itertools.product(experiment.measures, experiment.rows):
        cells = [entry for entry in entries if (entry.measure, entry.row) == (measure, row) and entry.seeds]
        if {entry.column for entry in cells} == columns.keys():
            values[measure, row] = average_columns(cells)
    return values


def check_page(page: Path, topics: Collection[str]) -> None:
    """Raises InputError where a page lacks a place for its tables."""
    fill_blocks(page, _COMMAND, dict.fromkeys([*topics, "summary"], ""))


def write_page(page: Path, folder: Path, topics: Mapping[str, Mapping[str, Experiment]]) -> None:
    """Write the tables of verdicts into the page, each between its marks, and all verdicts as CSV.

    Args:
        page: a Markdown file with places for the tables, see `fill_blocks`.
        folder: the folder of the CSV files.
        topics: {the name of a mark: {the stem of a CSV file: experiment}}.
    """
    blocks, verdicts = {}, []
    summary = ["| experiment | claim | verdict | difference |", "| --- | --- | --- | ---: |"]
    for topic, experiments in topics.items():
        parts = []
        for name, experiment in experiments.items():
            entries = load_entries(folder / f"{name}.csv")
            values = read_values(experiment, entries)
            judged = [judge(claim, experiment.quantities[claim.quantity], values) for claim in experiment.claims]
            lines = list(itertools.chain(*judged))
            verdicts += [(name, *_to_cells(line)) for line in lines]
            published = [first for first, *_ in judged if first.source]
            summary += [f"| {experiment.title} | {' | '.join(_summarize(line))} |" for line in published]
            parts.append(_describe(name, experiment, entries, {row for _, row in values}, lines, folder.name))
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
    sides = [f"{interval.mean:.6g}" for interval in (line.method, line.other) if interval] or ["", ""]
    return line.text, line.source, line.verdict, line.quantity.title, *numbers, *sides


def _describe(
    name: str, experiment: Experiment, entries: Sequence[Entry], done: set[str], lines: Sequence[Line], folder: str
) -> str:
    """Write an experiment: its setting, the differences from the paper's, and its verdicts; done: rows with values."""
    table = ["| claim | verdict | difference | method | baseline |", "| --- | --- | ---: | ---: | ---: |"]
    for line in lines:
        sides = [_format(interval, line.quantity.digits) for interval in (line.method, line.other)]
        table.append(f"| {' | '.join((*_summarize(line), *sides))} |")
    counts = sorted({len(entry.seeds) for entry in entries if entry.seeds})
    budget = f"{' or '.join(map(str, counts)) or 'No'} seeds compared."
    rates = list(experiment.choices) if len(experiment.choices) > 1 else []
    if rates:
        budget = f"Learning rates {', '.join(rates)}, each tried with one separate seed. {budget}"
    parts = [
        f"### {experiment.title}",
        f"{experiment.setting}. {budget}",
        f"Differences from the paper: {experiment.scales['cpu'].reduction}.",
        "\n".join(table),
    ]
    if entries:
        choices = _list_choices(rates, entries) if rates else ""
        parts.append(f"Results for each seed: [`{name}.csv`]({folder}/{name}.csv). {choices}")
    if missing := [row for row in experiment.rows if row not in done]:
        parts.append(f"Not yet run: {', '.join(missing)}.")
    return "\n" + "\n\n".join(parts)


def _list_choices(rates: Sequence[str], entries: Sequence[Entry]) -> str:
    """List the learning rates that validation examples chose, those of the columns in their order."""
    chosen: dict[str, dict[str, str]] = defaultdict(dict)
    for entry in entries:
        chosen[entry.row][entry.column] = entry.choice if entry.seeds else "failed"
    text = "; ".join(f"{row} {', '.join(choices.values())}" for row, choices in chosen.items())
    extreme = [row for row, choices in chosen.items() if {rates[0], rates[-1]} & set(choices.values())]
    note = (
        f" Smallest or largest of those tried, so a better one may lie outside the range: {', '.join(extreme)}."
        if extreme
        else ""
    )
    return f"Selected learning rates: {text}.{note}"


def _format(interval: Interval | None, digits: int) -> str:
    return "" if interval is None else f"{interval.mean:.{digits}f} ± {interval.half_width:.{digits}f}"

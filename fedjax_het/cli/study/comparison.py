"""Comparison of methods over the same seeds: intervals, and paired tests against the first of them."""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import scipy.stats

from fedjax_het.cli.runs import json_files
from fedjax_het.cli.runs.tables import Table


class Interval(NamedTuple):
    """A mean over seeds with its 95 % interval by Student's t; the half width is NaN for a single seed."""

    mean: float
    half_width: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Interval":
        array = np.asarray(values, float)
        if len(array) < 2:
            return cls(float(array.mean()), math.nan)
        error = array.std(ddof=1) / math.sqrt(len(array))
        return cls(float(array.mean()), float(scipy.stats.t.ppf(0.975, len(array) - 1) * error))

    def __str__(self) -> str:
        width = "" if math.isnan(self.half_width) else f" ± {100 * self.half_width:.1f}"
        return f"{100 * self.mean:.1f}{width}"


class Row(NamedTuple):
    """One method of a study."""

    method: str
    chosen: str  # the values of the trial that was selected
    scores: Sequence[float]  # one per seed, in their order; none where no run has finished
    is_bound: bool = False  # the trial was selected on test examples


def paired_p_value(scores: Sequence[float], reference: Sequence[float]) -> float:
    """The two-sided p-value of Student's paired test; 1 where all differences are 0, NaN for a single seed."""
    difference = np.subtract(scores, reference)
    if len(difference) < 2 or np.isnan(difference).any():
        return math.nan
    if np.ptp(difference) == 0:
        return 1.0 if difference[0] == 0 else 0.0
    return float(scipy.stats.ttest_1samp(difference, 0).pvalue)


def correct_by_holm(p_values: Sequence[float]) -> list[float]:
    """Holm's correction for testing several hypotheses; NaN stays and counts for none."""
    corrected, largest = list(p_values), 0.0
    known = sorted((p, i) for i, p in enumerate(p_values) if not math.isnan(p))
    for rank, (p, i) in enumerate(known):
        largest = max(largest, min(1.0, (len(known) - rank) * p))
        corrected[i] = largest
    return corrected


def make_table(title: str, rows: Sequence[Row], note: str) -> Table:
    """Tabulate the methods, the first of which is the reference."""
    first = rows[0]
    tested = [row for row in rows if row.scores and not row.is_bound and row is not first]
    p_values = correct_by_holm([paired_p_value(row.scores, first.scores) for row in tested])
    corrected = {row.method: p for row, p in zip(tested, p_values, strict=True)}
    columns = ["score", f"difference to {first.method}", "p, corrected", "values of the selected trial"]
    lines = []
    for row in rows:
        difference = p = ""
        if row in tested:
            difference = str(Interval.of(np.subtract(row.scores, first.scores).tolist()))
            p = "" if math.isnan(corrected[row.method]) else f"{corrected[row.method]:.3g}"
        label = f"{row.method} (oracle)" if row.is_bound else row.method
        score = str(Interval.of(row.scores)) if row.scores else "failed"
        lines.append((label, [score, difference, p, row.chosen]))
    if any(row.is_bound for row in rows):
        note += " (oracle): the trial was selected on the test examples, an upper bound and no result."
    return Table("study", title, columns, lines, note=note)


def without_values(table: Table) -> Table:
    """The table without the values of the selected trials, for a terminal."""
    rows = [(label, cells[:-1]) for label, cells in table.rows]
    return table._replace(columns=table.columns[:-1], rows=rows)


def to_csv(rows: Sequence[Row], seeds: Sequence[int]) -> str:
    """Write one line per method and seed, with all digits."""
    lines = [
        (row.method, "oracle" if row.is_bound else "validation", row.chosen, seed, score)
        for row in rows
        for seed, score in zip(seeds if row.scores else (), row.scores, strict=True)
    ]
    return json_files.to_csv(("method", "selected_on", "values", "seed", "score"), lines)


def to_record(rows: Sequence[Row]) -> list[Mapping[str, object]]:
    """The methods for study.json."""
    return [row._asdict() for row in rows]

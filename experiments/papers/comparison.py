"""What was printed beside what came out here."""

import csv
import io
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ..configuration import calls
from ..runs.run_directory import run_identity
from .spec import PRETRAINED, Experiment, Scale, Settings


class Entry(NamedTuple):
    """printed: the paper's value, or None.   seeds: ours; empty where the run failed.   deviation: the paper's."""

    measure: str
    row: str
    column: str
    printed: float | None
    seeds: list[float]
    deviation: float | None = None

    @property
    def mean(self) -> float | None:
        return float(np.mean(self.seeds)) if self.seeds else None

    @property
    def std(self) -> float | None:
        """The population's; None for one seed."""
        return float(np.std(self.seeds)) if len(self.seeds) > 1 else None

    @property
    def difference(self) -> float | None:
        return None if self.mean is None or self.printed is None else self.mean - self.printed


def markdown(experiment: Experiment, scale: str, entries: Sequence[Entry], common: Settings = {}) -> str:  # noqa: B006
    """A table a measure, and in words what was reduced, what the user set (`common`), and what is in doubt."""
    parts = [f"# {experiment.title}\n"]
    for measure in experiment.measures:
        of_measure = [entry for entry in entries if entry.measure == measure]
        parts.append(_table(measure, experiment, of_measure))
    parts.append(_setting(experiment.scales[scale], common))
    if experiment.doubts:
        is_paper = not experiment.scales[scale].reduced
        about = "In doubt" if is_paper else "In doubt in the paper, and what is taken at --scale=paper"
        parts.append(f"{about}:\n\n" + "".join(f"- {doubt}\n" for doubt in experiment.doubts))
    return "\n".join(parts)


def _setting(scale: Scale, common: Settings) -> str:
    """What was run: reduced or as published, and but for what."""
    changed = dict(common)
    text = f"Reduced: {scale.reduced}" if scale.reduced else "The published setting"
    if scale.pretrained and calls.parse_text(changed.pop(PRETRAINED, "none"), str | None) is None:
        text += f", but training starts from random weights, not from {scale.pretrained}"
    of_result = [f"{key}={value}" for key, value in run_identity(changed).items() if key != "data.cache"]
    return f"{text}.\n" + (f"\nBut for what was set by hand: {', '.join(of_result)}.\n" if of_result else "")


def _table(measure: str, experiment: Experiment, entries: Sequence[Entry]) -> str:
    """paper, here and difference under each column; here alone where nothing was printed."""
    columns = list(dict.fromkeys(entry.column for entry in entries))
    is_compared = any(entry.printed is not None for entry in entries)
    kinds = ("paper", "here", "difference") if is_compared else ("here",)
    head = [measure, *(f"{column} {kind}" if is_compared else column for column in columns for kind in kinds)]
    lines = [head, ["---"] + ["---:"] * (len(head) - 1)]
    for row in experiment.rows:
        cells = {entry.column: entry for entry in entries if entry.row == row}
        shown = [_shown(cells[column]) for column in columns]
        lines.append([row, *(each[kind] for each in shown for kind in kinds)])
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _shown(entry: Entry) -> dict[str, str]:
    here = "failed" if entry.mean is None else f"{entry.mean:.4g}"
    return {
        "paper": ("" if entry.printed is None else f"{entry.printed:g}")
        + ("" if entry.deviation is None else f" ± {entry.deviation:g}"),
        "here": here if entry.std is None else f"{here} ± {entry.std:.2g}",
        "difference": "" if entry.difference is None else f"{entry.difference:+.2f}",
    }


def comma_separated(entries: Sequence[Entry]) -> str:
    """A line an entry, seeds with semicolons between."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["measure", "row", "column", "paper", "paper std", "mean", "std", "difference", "seeds"])
    for entry in entries:
        numbers = (entry.printed, entry.deviation, entry.mean, entry.std, entry.difference)
        writer.writerow([*entry[:3], *("" if x is None else x for x in numbers), ";".join(map(str, entry.seeds))])
    return text.getvalue()

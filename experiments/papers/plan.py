"""What a table or figure of a paper is made of."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from experiments import looks
from experiments.cells import Cell
from experiments.outputs import MetricLines
from experiments.rundir import RunDirectory

ROOT = Path(__file__).resolve().parents[2]
Settings = Mapping[str, str]
"""{"algorithm.lam": "0.1"}, as on the command line."""
Measure = Callable[[RunDirectory], list[float]]
"""A value a seed, of a finished run."""
Printed = Mapping[str, Sequence[float | None]]
"""{row: a value a column}, per cent as printed; None where nothing can be read."""


class Scale(NamedTuple):
    """How large an experiment is run.

    columns: what each is called and sets; those of the paper's that the table compares with have its names.
    reduced: in words, what is less than in the paper; empty at its own scale.   path: what --data names, if needed.
    """

    config: str  # below configs/
    common: Settings
    columns: Mapping[str, Settings]
    reduced: str = ""
    path: str = ""


class Experiment(NamedTuple):
    """A table (or what a figure plots): every row in every column, read off by each measure.

    tuned: what a row sets in one column alone.   printed: {measure: the paper's values}, in its columns' order.
    doubts: where the public record contradicts itself.   is_figure: columns are numbers, to be drawn as an axis.
    """

    title: str
    rows: Mapping[str, Settings]
    measures: Mapping[str, Measure]
    scales: Mapping[str, Scale]
    printed: Mapping[str, Printed] = {}
    tuned: Mapping[tuple[str, str], Settings] = {}
    doubts: Sequence[str] = ()
    is_figure: bool = False

    def cells(self, scale: str, common: Settings) -> dict[tuple[str, str], Cell]:
        """{(row, column): the run}.   common: what the user sets for all, which wins."""
        chosen, cells = self.scales[scale], {}
        for row, of_row in self.rows.items():
            for column, of_column in chosen.columns.items():
                own = {**of_row, **of_column, **self.tuned.get((row, column), {})}
                own = {key: text for key, text in own.items() if key not in common}
                cells[row, column] = Cell(ROOT / "configs" / chosen.config, {**chosen.common, **common}, own)
        return cells


def final(name: str) -> Measure:
    """A figure after the last round, "test/accuracy", in per cent."""

    def measure(run: RunDirectory) -> list[float]:
        return [100 * value for value in run.read("summary.json")["final"][name]["seeds"]]

    return measure


def looked(diagnostic: str, quantity: str, round: int = 0) -> Measure:
    """A number that a diagnostic told before this round."""

    def measure(run: RunDirectory) -> list[float]:
        lines = MetricLines(run / looks.NAME).read()
        return [line[diagnostic][quantity] for line in lines if line["round"] == round]

    return measure

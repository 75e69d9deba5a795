"""What a table or figure of a paper is made of."""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from ..configuration.settings import CONFIGS
from ..sweep.grid import GridRun
from .measures import Measure

PRETRAINED = "model.pretrained"
Settings = Mapping[str, str]
"""{"algorithm.lam": "0.1"}, as on the command line."""
Printed = Mapping[str, Sequence[float | None]]
"""{row: a value a column of the paper, and its average where it has one}; None where nothing can be read."""


class Scale(NamedTuple):
    """How large an experiment is run.

    columns: what each is called and sets; those that are the paper's have its names.   reduced: in words, what is less
    than in the paper; empty at its own scale.   data: {name: what --data has to give the path of}; settings say {name}.
    pretrained: in words, the weights that training starts from, for which --config.model.pretrained is asked; empty
    where it starts from random ones.   is_compared: whether printed values stand beside the results.
    """

    config: str  # below configs/
    common: Settings
    columns: Mapping[str, Settings]
    reduced: str = ""
    data: Mapping[str, str] = {}
    pretrained: str = ""
    is_compared: bool = True


def smoke(columns: Mapping[str, Settings], besides: Settings, network: str = "a multilayer perceptron") -> Scale:
    """The smallest: it needs no data.   besides: what is set in all runs, more than three rounds of everyone."""
    common = {"rounds": "3", "cohort_size": "0", "layout": "vmapped", **besides}
    words = f"scikit-learn's digits, {network}, three rounds, one seed: that it runs, nothing more"
    return Scale("quickstart.py", common, columns, words, is_compared=False)


class Experiment(NamedTuple):
    """A table, or what a figure shows: every row in every column, read off by each measure.

    tuned: what a row sets in one column alone.   printed: {measure: the paper's values}, in its columns' order.
    deviations: the same of the standard deviations printed beside them.   average: what the mean over columns is
    called, where there is one.   doubts: where the public record contradicts itself, and what it does not tell
    ("Not told by the paper: ...").   draw: (the figure's points, the finished runs, file) -> the picture, see
    `figures`.
    """

    title: str
    rows: Mapping[str, Settings]
    measures: Mapping[str, Measure]
    scales: Mapping[str, Scale]
    printed: Mapping[str, Printed] = {}
    deviations: Mapping[str, Printed] = {}
    tuned: Mapping[tuple[str, str], Settings] = {}
    average: str = ""
    doubts: Sequence[str] = ()
    draw: Callable | None = None

    def cells(self, scale: str, common: Settings, paths: Mapping[str, str]) -> dict[tuple[str, str], GridRun]:
        """{(row, column): the run}.   common: what the user sets for all, which wins.   paths: of the data."""
        chosen, cells = self.scales[scale], {}
        for row, of_row in self.rows.items():
            for column, of_column in chosen.columns.items():
                own = {**of_row, **of_column, **self.tuned.get((row, column), {})}
                parts = {**chosen.common, **common}, {key: text for key, text in own.items() if key not in common}
                filled = [{key: _filled(text, paths) for key, text in part.items()} for part in parts]
                cells[row, column] = GridRun(CONFIGS / chosen.config, *filled)
        return cells

    def value(self, measure: str, row: str, column: str) -> float | None:
        """What the paper prints there."""
        return self._printed(self.printed, measure, row, column)

    def deviation(self, measure: str, row: str, column: str) -> float | None:
        """The standard deviation that the paper prints beside it."""
        return self._printed(self.deviations, measure, row, column)

    def _printed(self, tables: Mapping[str, Printed], measure: str, row: str, column: str) -> float | None:
        values = tables.get(measure, {}).get(row, ())
        return dict(zip([*self.scales["paper"].columns, self.average], values, strict=False)).get(column)


def _filled(text: str, paths: Mapping[str, str]) -> str:
    for name, path in paths.items():
        text = text.replace(f"{{{name}}}", path)
    return text

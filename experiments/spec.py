"""The record of an experiment: its scales, rows and columns, choices, measures, claims and printed values."""

import itertools
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from fedjax_het.cli.configuration.config_files import find_config
from fedjax_het.cli.runs.results import RunResults
from fedjax_het.cli.sweep.grid import GridRun

PRETRAINED = "model.pretrained"
Settings = Mapping[str, str]
"""{"algorithm.lam": "0.1"}, as on the command line."""
Place = tuple[str, str]
"""(row, column)."""
Printed = Mapping[str, Sequence[float | None]]
"""{row: one value per column of the paper, and the average where it has one}; None where a value cannot be read."""
Measure = Callable[[RunResults, str], list[float]]
"""(a run, the name of a column) -> one value per seed."""


class Scale(NamedTuple):
    """The size at which an experiment is run.

    Attributes:
        config: the name of the embedded config, "pacs" or "pacs:fedrd".
        common: the settings of all runs.
        columns: {name: settings} of each column; columns of the paper have its names.
        reduction: a description of the reductions from the paper's scale; empty at the paper's scale.
        data: {name: description} of the files that --data gives; settings refer to them as {name}.
        pretrained: the initial weights, in words, for which --config.model.pretrained is required;
            empty where it starts from random ones.
        is_compared: whether printed values are shown with the results.
    """

    config: str
    common: Settings
    columns: Mapping[str, Settings]
    reduction: str = ""
    data: Mapping[str, str] = {}
    pretrained: str = ""
    is_compared: bool = True


def make_smoke_scale(
    columns: Mapping[str, Settings], settings: Settings, network: str = "a multilayer perceptron"
) -> Scale:
    """Make the smallest scale, which needs no data.

    Args:
        columns: its columns.
        settings: the settings of all runs, by default three rounds with all clients.
        network: a description of the network.
    """
    common = {"rounds": "3", "cohort_size": "0", "layout": "vmapped", **settings}
    reduction = (
        f"scikit-learn's digits, {network}, {common['rounds']} rounds, one seed: a test that it runs, nothing more"
    )
    return Scale("quickstart", common, columns, reduction, is_compared=False)


def read_printed(measure: str, table: str) -> dict[str, Any]:
    """Read a paper's values of one measure; return the arguments `printed` and `deviations` of `Experiment`.

    Args:
        measure: the name of the measure.
        table: one line per row, "FedAvg  91.10 ± 0.46  83.12", whose name and values are separated by two spaces or
            more; "?" is a value that cannot be read.
    """

    def number(text: str) -> float | None:
        return None if text in ("", "?") else float(text)

    rows = [re.split(r" {2,}", line.strip()) for line in table.strip().splitlines()]
    pairs = {name: [cell.partition(" ± ") for cell in cells] for name, *cells in rows}
    printed = {name: [number(mean) for mean, _, _ in cells] for name, cells in pairs.items()}
    deviations = {name: [number(deviation) for _, _, deviation in cells] for name, cells in pairs.items()}
    return {"printed": {measure: printed} if rows else {}, "deviations": {measure: deviations} if "±" in table else {}}


class Quantity(NamedTuple):
    """A measure that claims are about.

    Attributes:
        read: reads it from a run.
        title: its name and unit.
        margin: the largest difference that is negligible; a fraction of the other method's mean if `is_relative`.
        is_lower: whether lower values are better.
        is_relative: see `margin`.
        digits: number of decimals.
    """

    read: Measure
    title: str
    margin: float
    is_lower: bool = False
    is_relative: bool = False
    digits: int = 1

    def __call__(self, run: RunResults, column: str) -> list[float]:
        return self.read(run, column)


class Claim(NamedTuple):
    """The statement that one method is better than others.

    Attributes:
        text: the claim in words, without the other methods.
        source: its place in the paper; empty for a question that the paper does not ask.
        method: the row that is claimed to be better.
        others: the rows that it is compared with.
        quantity: the name of the measure.
    """

    text: str
    source: str
    method: str
    others: Sequence[str]
    quantity: str = "score"


class Experiment(NamedTuple):
    """A table, or the content of a figure: every row in every column, read by each measure.

    Attributes:
        title: title of the table or figure.
        rows: {name: settings} of each row.
        measures: {name: how it is read from a run}.
        scales: {name: scale}; "paper" is the paper's own.
        printed: {measure: the paper's values}, in the order of its columns.
        deviations: the printed standard deviations, in the same order.
        tuned: {(row, column): settings} of one row in one column alone.
        left_out: places without a run.
        choices: {name: settings}; a run is trained with each, and the one with the highest mean score over clients on
            their validation examples is reported, for each row and column.
        refit: settings with which the chosen run is retrained, from seeds that no choice has used; None: the chosen
            run itself is reported.
        reference: the row that others should be close to, if there is one.
        average: the name of the mean over columns, where there is one.
        setting: a description of data, network and budget, where claims are judged.
        claims: statements about rows, judged by measures that are a `Quantity`.
        caveats: contradictions in the public record, and settings that it does not state ("Not in the paper: ...").
        draw: (entries, runs) -> the picture; see `figures`.
    """

    title: str
    rows: Mapping[str, Settings]
    measures: Mapping[str, Measure]
    scales: Mapping[str, Scale]
    printed: Mapping[str, Printed] = {}
    deviations: Mapping[str, Printed] = {}
    tuned: Mapping[Place, Settings] = {}
    left_out: Collection[Place] = ()
    choices: Mapping[str, Settings] = {"": {}}
    refit: Settings | None = None
    reference: str = ""
    average: str = ""
    setting: str = ""
    claims: Sequence[Claim] = ()
    caveats: Sequence[str] = ()
    draw: Callable | None = None

    @property
    def quantities(self) -> dict[str, Quantity]:
        """The measures that claims are about."""
        return {name: measure for name, measure in self.measures.items() if isinstance(measure, Quantity)}

    def make_runs(
        self, scale: str, common: Settings, paths: Mapping[str, str], choice: str = ""
    ) -> dict[Place, GridRun]:
        """Make the runs of a scale.

        Args:
            scale: its name.
            common: the user's settings for all runs, which take precedence.
            paths: {name: path} of the data.
            choice: the name of one of `choices`.

        Returns:
            {(row, column): run}, the rows of one column after another.
        """
        chosen, runs = self.scales[scale], {}
        for column, row in itertools.product(chosen.columns, self.rows):
            if (row, column) in self.left_out:
                continue
            settings = self.rows[row], chosen.columns[column], self.tuned.get((row, column), {}), self.choices[choice]
            own = {key: text for part in settings for key, text in part.items() if key not in common}
            filled = [
                {key: fill_paths(text, paths) for key, text in part.items()}
                for part in ({**chosen.common, **common}, own)
            ]
            runs[row, column] = GridRun(find_config(chosen.config), *filled)
        return runs

    def make_refit(self, run: GridRun) -> GridRun:
        """Make the run that retrains a chosen run with new seeds; its diagnostics are of the first and the last round.

        Args:
            run: the chosen run.
        """
        settings, refit = run.settings(), dict(self.refit or {})
        if "diagnostics" in refit:
            refit["diagnose_every"] = str(max(settings["rounds"] - 1, 1))
        return run._replace(own={**run.own, "seed": str(settings["seed"] + settings["num_seeds"]), **refit})

    def printed_value(self, measure: str, row: str, column: str) -> tuple[float | None, float | None]:
        """Return the value that the paper prints and its standard deviation; None where there is none."""
        if measure not in self.printed:
            return None, None
        columns = [*self.scales["paper"].columns, self.average]
        rows = [tables.get(measure, {}).get(row, ()) for tables in (self.printed, self.deviations)]
        value, deviation = (dict(zip(columns, values, strict=False)).get(column) for values in rows)
        return value, deviation


def fill_paths(text: str, paths: Mapping[str, str]) -> str:
    """Replace each {name} in a setting by the path of that file."""
    for name, path in paths.items():
        text = text.replace(f"{{{name}}}", path)
    return text


class Entry(NamedTuple):
    """A value of the paper and ours.

    Attributes:
        printed: the paper's value, or None.
        seeds: our values; empty if the run failed.
        deviation: the paper's standard deviation, or None.
        choice: the one of the experiment's choices that the values are of.
    """

    measure: str
    row: str
    column: str
    printed: float | None
    seeds: list[float]
    deviation: float | None = None
    choice: str = ""

    @property
    def mean(self) -> float | None:
        return float(np.mean(self.seeds)) if self.seeds else None

    @property
    def std(self) -> float | None:
        """The population's standard deviation; None for one seed."""
        return float(np.std(self.seeds)) if len(self.seeds) > 1 else None

    @property
    def difference(self) -> float | None:
        return None if self.mean is None or self.printed is None else self.mean - self.printed


Runs = Mapping[Place, RunResults]
"""{(row, column): a finished run}."""

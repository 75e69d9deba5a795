"""Phases, where the data of clients change with the round: their figure, and a table of forgetting and recovery."""

from collections.abc import Sequence

import numpy as np

from fedjax_het.cli.report.rows import Row
from fedjax_het.cli.runs.figures import Figure, Panel, View, mean_curve
from fedjax_het.cli.runs.phase_records import PHASE_CURVES, accuracy_heat
from fedjax_het.cli.runs.tables import PER_CENT, ColumnFormat, Table, Value

_CAPTION = (
    "Mean accuracy of clients on their test examples, as they are in a phase; vertical lines are the starts of phases. "
    "The accuracy on the data of the next round is measured before training on them (prequential). Of phases with "
    "equal data, the first stands for all."
)
_NOTE = (
    "After the last phase; mean ± population standard deviation over seeds. Drop: the largest fall of the accuracy on "
    "the data of the next round at the start of a phase. Recovery: rounds from there until 95 % of the best accuracy "
    "before, measured at evaluations."
)
_COLUMNS = {
    "average accuracy": "average_accuracy",
    "forgetting": "forgetting",
    "backward transfer": "backward_transfer",
    "forward transfer": "forward_transfer",
}
_LESS_IS_BETTER = ColumnFormat(PER_CENT.text, min)


def common_starts(rows: Sequence[Row]) -> tuple[float, ...]:
    """The starts of phases if they are the same in all runs; () otherwise."""
    found = {
        tuple(run.partition.get("phases", {}).get("starts", ())) for row in rows for run in row.runs if run.partition
    }
    return found.pop()[1:] if len(found) == 1 and found != {()} else ()


def make_figure(rows: Sequence[Row]) -> Figure | None:
    """Draw the accuracy on the data of the next round and on all phases so far, and a heat map of all phases."""
    measured = [row for row in rows if row.first.partition and "phases" in row.first.partition and row.first.lines]
    if not measured:
        return None
    curves, heats = View("by rounds", []), View("by phase", [])
    for name, title in PHASE_CURVES.items():
        marks = []
        for row in measured:
            rounds = sorted({line["round"] for line in row.first.lines})
            seeds = [[line[name] for line in row.first.lines if line["round"] == round] for round in rounds]
            marks.append(mean_curve(row.label, row.number, rounds, seeds))
        curves.panels.append(Panel(title, "round", "accuracy", marks, (0, 1), x_lines=common_starts(measured)))
    for row in measured:
        assert row.first.partition is not None
        heat = accuracy_heat(row.first.partition["phases"], row.first.lines)
        heats.panels.append(Panel(row.label, "round", "phase", [heat], is_wide=True, rows=(row.label,)))
    return Figure("phases", "Accuracy by phase", _CAPTION, [curves, heats])


def make_table(rows: Sequence[Row]) -> Table:
    """Tabulate average accuracy, forgetting, transfers, and the largest drop with the recovery from it."""
    summaries = [(row.first.summary or {}).get("phases") for row in rows]
    columns: dict[str, list[Value | str | None]] = {name: [] for name in (*_COLUMNS, "drop", "recovery, rounds")}
    for summary in summaries:
        for column, name in _COLUMNS.items():
            columns[column].append(_value(summary, name, -1))
        drops = [np.nan if x is None else x for x in summary["drop"]["mean"]] if summary else []
        place = int(np.nanargmax(drops)) if np.isfinite(drops).any() else 0
        columns["drop"].append(_value(summary, "drop", place))
        columns["recovery, rounds"].append(_recovery(summary, place))
    formats = {"forgetting": _LESS_IS_BETTER, "drop": _LESS_IS_BETTER}
    return Table.from_columns("phases", "Phases", [row.label for row in rows], columns, formats, _NOTE)


def _value(summary: dict | None, name: str, phase: int) -> Value | None:
    """A figure of a phase; None if it is not defined."""
    if summary is None or (mean := summary[name]["mean"][phase]) is None:
        return None
    return Value(mean, summary[name]["std"][phase])


def _recovery(summary: dict | None, phase: int) -> str | None:
    if summary is None or summary["drop"]["mean"][phase] is None:
        return None
    rounds, num = summary["recovery"]["mean"][phase], summary["num_recovered"][phase]
    return f"{rounds:g} ({num} seed{'s' * (num > 1)})" if num else "never"

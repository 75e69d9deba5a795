"""Figures and tables of the clients: their scores, the fairness of the scores, and their shares of the classes."""

from collections.abc import Sequence

import numpy as np

from ..runs.figures import Curve, Figure, Panel, View, mean_points, partition_heat
from ..runs.results import client_scores
from ..runs.tables import PER_CENT, ColumnFormat, Table, Value
from .rows import Row

KINDS = {
    "clients": "server's model, own test examples",
    "personal": "own model, own test examples",
    "personal_test": "own model, common test set",
}
_FORMATS = {"deviation": ColumnFormat(PER_CENT.text, min), "Gini": ColumnFormat(lambda value: f"{value:.3f}", min)}
_FAIRNESS = {
    "mean": "mean",
    "worst tenth": "worst10",
    "worst": "min",
    "best": "max",
    "deviation": "std",
    "Gini": "gini",
}
_FAIRNESS_NOTE = "Over clients, in per cent, then mean ± deviation over seeds. Gini: 0 = all clients have the same."
_SCORES_CAPTION = (
    "After the last round: the mean over seeds, and a bar from the lowest to the highest. Clients without test "
    "examples are left out. Sorted: the clients of each run from its worst to its best."
)
_PARTITION_CAPTION = (
    "The training examples of each client (across) in each class (down), newcomers last; one map for rows that share a "
    "partition. As shares of all examples of a client, small clients can be read, too."
)


def make_fairness_tables(rows: Sequence[Row], score: str) -> list[Table]:
    """Tabulate the distribution of scores over clients after the last round: one table per kind of model."""
    tables = []
    for kind, model in KINDS.items():
        body = []
        for row in rows:
            statistics = [_read_last(row, f"{kind}/{score}_{statistic}") for statistic in _FAIRNESS.values()]
            if any(statistics):
                body.append((row.label, [Value.of(each) if each else None for each in statistics]))
        if body:
            title = f"Fairness over clients: {model}"
            tables.append(Table(f"fairness_{kind}", title, list(_FAIRNESS), body, _FORMATS, _FAIRNESS_NOTE))
    return tables


def _read_last(row: Row, name: str) -> list[float]:
    """Return the values after the last round of every run and seed."""
    return [
        float("nan") if line[name] is None else line[name]
        for run in row.runs
        for line in run.lines
        if line["round"] == run.done and name in line
    ]


def make_scores_figure(rows: Sequence[Row], score: str, title: str) -> Figure | None:
    """Draw every client's score as a point, and the scores of all clients sorted.

    Args:
        rows: the rows of one data set.
        score: "accuracy" or "dice".
        title: of the score.
    """
    views = {"by client": [], "sorted": []}
    for kind, model in KINDS.items():
        scores = [(row, clients) for row in rows if (clients := client_scores(row.runs, kind, score))]
        if not scores:
            continue
        points = [
            mean_points(row.label, row.number, {name: list(seeds.values()) for name, seeds in clients.items()})
            for row, clients in scores
        ]
        names = list(dict.fromkeys(name for _, clients in scores for name in clients))
        views["by client"].append(Panel(model, "client", title, points, y_range=(0, 1), x_names=names, is_wide=True))
        lines = [_sort(row, clients) for row, clients in scores]
        views["sorted"].append(Panel(model, "share of clients", title, lines, y_range=(0, 1), is_wide=True))
    if not views["by client"]:
        return None
    title = f"{title.capitalize()} per client"
    return Figure("clients", title, _SCORES_CAPTION, [View(*each) for each in views.items()])


def _sort(row: Row, clients: dict[str, dict[int, float]]) -> Curve:
    means = sorted(float(np.mean(list(seeds.values()))) for seeds in clients.values())
    shares = [(i + 0.5) / len(means) for i in range(len(means))]
    return Curve(row.label, row.number, shares, means)


def make_partition_figure(rows: Sequence[Row], unit: str) -> Figure | None:
    """Draw the classes of the clients' training examples: one heat map per partition.

    Args:
        rows: the rows of one data set.
        unit: "examples", or "pixels" of masks.
    """
    labels: dict[str, dict[str, None]] = {}
    partitions = {}
    for row in rows:
        for run in row.runs:
            if run.partition:
                partitions[run.partition["fingerprint"]] = run.partition
                labels.setdefault(run.partition["fingerprint"], {})[row.label] = None
    if not partitions:
        return None
    views = {unit: [], "shares": []}
    for fingerprint, partition in partitions.items():
        title = "all runs" if len(partitions) == 1 else ", ".join(labels[fingerprint])
        for name, panels in views.items():
            is_share = name == "shares"
            heat = partition_heat(partition["clients"], "share" if is_share else unit, is_share)
            panels.append(Panel(title, "client", "class", [heat], is_wide=True, rows=tuple(labels[fingerprint])))
    return Figure("partition", "Classes by client", _PARTITION_CAPTION, [View(*each) for each in views.items()])

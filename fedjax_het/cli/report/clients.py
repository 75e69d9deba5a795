"""Figures and tables of the clients: their scores, fairness, shares of the classes, predictions, and one client's."""

from collections.abc import Iterator, Sequence

import numpy as np

from fedjax_het.cli.report.rows import Row, find_score
from fedjax_het.cli.runs import records
from fedjax_het.cli.runs.data_usage import CLIENT_GROUPS, GROUPS
from fedjax_het.cli.runs.figures import Curve, Figure, Heat, Panel, View, mean_points, partition_heat
from fedjax_het.cli.runs.results import RunResults, client_scores
from fedjax_het.cli.runs.run_directory import RunDirectory
from fedjax_het.cli.runs.run_files import Json
from fedjax_het.cli.runs.tables import (
    CLIENT_SUMMARIES,
    INDEX_FORMATS,
    PER_CENT,
    ColumnFormat,
    Table,
    Value,
    score_title,
)

_FORMATS = {"deviation": ColumnFormat(PER_CENT.text, min), **INDEX_FORMATS}
_FAIRNESS = CLIENT_SUMMARIES | {"best": "max"}
_SPLITS = {"training": "train", "validation": "valid", "test": "test"}
_FAIRNESS_NOTE = (
    "Statistics over clients in per cent, mean ± deviation over seeds. If all clients have the same score, Jain's "
    "index is 1 and the Gini coefficient 0."
)
_SCORES_CAPTION = (
    "After the last round: mean over seeds, with a bar from minimum to maximum. Clients without test examples are "
    "omitted. Sorted: the clients of each run from worst to best."
)
_PARTITION_CAPTION = (
    "Training examples of each client (columns) in each class (rows), newcomers last, with one map per partition. The "
    "view of shares divides by the number of examples of each client."
)
_EXAMPLES_NOTE = "Number of examples in each split, and of training examples in each class."
_CURVE_CAPTION = (
    "After each round that improved the validation score over all clients, and after the last round; one curve per "
    "seed."
)
_CONFUSION_CAPTION = (
    "Predictions after the last checkpoint, summed over seeds: rows are true classes, columns predicted classes. "
    "Shares are relative to the examples of the true class."
)


def make_fairness_tables(rows: Sequence[Row]) -> list[Table]:
    """Tabulate the distribution of scores over clients after the last round: one table per kind of model."""
    score, tables = find_score(rows), []
    final = [[records.final_figures(run.lines) for run in row.runs if run.lines] for row in rows]
    for kind in CLIENT_GROUPS:
        columns = {}
        for column, statistic in _FAIRNESS.items():
            name = f"{kind}/{score}_{statistic}"
            seeds = [[x for figures in own if name in figures for x in figures[name]["seeds"]] for own in final]
            columns[column] = [Value.of(values) if values else None for values in seeds]
        title, labels = f"Fairness over clients: {GROUPS[kind].description}", [row.label for row in rows]
        tables.append(Table.from_columns(f"fairness_{kind}", title, labels, columns, _FORMATS, _FAIRNESS_NOTE))
    return [table for table in tables if table.columns]


def make_scores_figure(rows: Sequence[Row]) -> Figure | None:
    """Draw every client's score as a point, and the scores of all clients sorted."""
    score = find_score(rows)
    title = score_title(score)
    by_client, in_order = View("by client", []), View("sorted", [])
    for kind in CLIENT_GROUPS:
        points, lines, names = [], [], {}
        for row in rows:
            if clients := client_scores(row.runs, kind, score):
                scores = {name: list(seeds.values()) for name, seeds in clients.items()}
                means = sorted(float(np.mean(values)) for values in scores.values())
                shares = [(i + 0.5) / len(means) for i in range(len(means))]
                points.append(mean_points(row.label, row.number, scores))
                lines.append(Curve(row.label, row.number, shares, means))
                names |= scores
        if points:
            model = GROUPS[kind].description
            by_client.panels.append(Panel(model, "client", title, points, (0, 1), x_names=list(names), is_wide=True))
            in_order.panels.append(Panel(model, "share of clients", title, lines, (0, 1), is_wide=True))
    views = [by_client, in_order]
    return Figure("clients", f"{title.capitalize()} per client", _SCORES_CAPTION, views) if by_client.panels else None


def make_partition_figure(rows: Sequence[Row]) -> Figure | None:
    """Draw the classes of the clients' training examples, or of the pixels of masks: one heat map per partition."""
    unit = "pixels" if find_score(rows) == "dice" else "examples"
    partitions: dict[str, tuple[Json, dict[str, None]]] = {}
    for row in rows:
        for partition in (run.partition for run in row.runs if run.partition):
            partitions.setdefault(partition["fingerprint"], (partition, {}))[1][row.label] = None
    views = [View(unit, []), View("shares", [])]
    for partition, labels in partitions.values():
        title = "all runs" if len(partitions) == 1 else ", ".join(labels)
        for view, color_title, is_share in zip(views, (unit, "share"), (False, True), strict=True):
            heat = partition_heat(partition["clients"], color_title, is_share)
            view.panels.append(Panel(title, "client", "class", [heat], is_wide=True, rows=tuple(labels)))
    return Figure("partition", "Classes by client", _PARTITION_CAPTION, views) if partitions else None


# ---- one client, and predictions -------------------------------------------------------------------------------------
def find_client(rows: Sequence[Row], name: str) -> list[tuple[Row, Json]]:
    """Return the rows that have a client, with its record in the partition."""
    clients = [(row, record) for row in rows if row.first.partition for record in row.first.partition["clients"]]
    return [(row, record) for row, record in clients if record["client"] == name]


def make_client_parts(rows: Sequence[Row], name: str, has_confusion: bool) -> list[Table | Figure]:
    """Make the table of a client's examples and the figures of its scores and predictions; [] if no row has it."""
    score = find_score(rows)
    if not (found := find_client(rows, name)):
        return []
    clients, labels = [client for _, client in found], [row.label for row, _ in found]
    counts = {title: [client[split] for client in clients] for title, split in _SPLITS.items()}
    counts |= {str(name): [client["classes"].get(name, 0) for client in clients] for name in clients[0]["classes"]}
    columns = {title: [f"{count:,}" for count in values] for title, values in counts.items()}
    title = f"Examples of {name}"
    parts: list[Table | Figure] = [Table.from_columns("client_data", title, labels, columns, note=_EXAMPLES_NOTE)]
    panels = []
    for kind in CLIENT_GROUPS:
        column = score if kind == "clients" else f"{kind}_{score}"
        curves = [curve for row, _ in found for curve in _make_curves(row, name, column)]
        panels += [Panel(GROUPS[kind].description, "round", score_title(score), curves, (0, 1))] if curves else []
    parts += [Figure("client_scores", f"Scores of {name}", _CURVE_CAPTION, [View("", panels)])] if panels else []
    return parts + ([draw_confusion([row for row, _ in found], name)] if has_confusion else [])


def _make_curves(row: Row, name: str, column: str) -> Iterator[Curve]:
    for run in row.runs:
        scores: dict[int, dict[int, float]] = {}
        clients = [(line["round"], record) for line in run.improvements for record in line["clients"]]
        for round, client in [*clients, *((run.done, record) for record in run.clients)]:
            if client["client"] == name and client.get(column) not in (None, ""):
                scores.setdefault(int(client["seed"]), {})[round] = float(client[column])
        yield from (Curve(row.label, row.number, list(own), list(own.values())) for own in scores.values())


def draw_confusion(rows: Sequence[Row], client: str | None = None) -> Figure:
    """Draw the confusion matrices of the rows.

    Args:
        rows: the rows of one data set.
        client: whose test examples, with its own model where clients have one; None: the common test set, or the test
            examples of all clients where there is none.

    Raises:
        InputError: A run has no checkpoint, its data have changed, or there are no test examples or no classes.
    """
    views: list[View] = [View("shares", []), View("examples", [])]
    for row in rows:
        matrix = np.sum([counts for run in row.runs for counts in _count_confusions(run, client)], axis=0)
        shares = matrix / np.maximum(matrix.sum(axis=1, keepdims=True), 1)
        names = list(map(str, row.first.partition_clients[0]["classes"]))
        for view, z in zip(views, (shares, matrix), strict=True):
            heat = Heat(names, names, z.tolist(), "amount", view.name)
            view.panels.append(Panel(row.label, "predicted class", "true class", [heat], rows=(row.label,)))
    name, title = ("client_confusion", f"Predictions for {client}") if client else ("confusion", "Confusion matrices")
    return Figure(name, title, _CONFUSION_CAPTION, views)


def _count_confusions(run: RunResults, client: str | None) -> Iterator[np.ndarray]:
    from fedjax_het import predict  # not before they are needed: other reports read no data and run no model
    from fedjax_het.cli.configuration import build, settings
    from fedjax_het.cli.runs.trained_model import restore_last

    complete, _ = settings.complete_settings(run.settings)
    state, _, _, parts = restore_last(RunDirectory(run.directory), complete)
    federation, clients = parts.federation, parts.federation.describe()[: parts.federation.num_clients]
    is_common = client is None and federation.test is not None and bool(federation.test.count)
    has_own = not is_common and any(name.startswith("personal/") for line in run.lines[-1:] for name in line)
    numbers = [i for i, entry in enumerate(clients) if entry["client"] == client or (client is None and entry["test"])]
    for seed in range(complete["num_seeds"]):
        for number in [None] if is_common else numbers:
            options = {"client": number, "personal": has_own, "run": seed, "seed": complete["seed"]}
            predicted = predict(build.build_algorithm(complete), parts.model, federation, state, **options)
            yield predicted.confusion_matrix(federation.num_classes)

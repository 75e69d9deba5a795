"""The section of one client, and confusion matrices, which are drawn from the data and the last checkpoints of runs."""

from collections.abc import Iterator, Sequence

import numpy as np

from ..runs.figures import Curve, Figure, Heat, Panel, View
from ..runs.results import RunResults
from ..runs.run_directory import RunDirectory
from ..runs.run_files import Json
from ..runs.tables import Table, score_title
from .clients import KINDS
from .rows import Row

_EXAMPLES_NOTE = "Numbers of examples, and the training examples of each class."
_CURVE_CAPTION = (
    "After the rounds at which the validation examples of all clients gave a better score than before, and after the "
    "last; a curve per seed."
)
_CONFUSION_CAPTION = (
    "Predictions after the last checkpoint, all seeds together: true classes down, predicted across. A share is "
    "of the examples of a true class."
)


def find_client(rows: Sequence[Row], name: str) -> list[tuple[Row, Json]]:
    """Return the rows that have a client, with its record in the partition."""
    clients = [(row, each) for row in rows if row.first.partition for each in row.first.partition["clients"]]
    return [(row, each) for row, each in clients if each["client"] == name]


def make_parts(rows: Sequence[Row], name: str, score: str, has_confusion: bool) -> list[Table | Figure]:
    """Make the table of a client's examples and the figures of its scores and predictions; [] if no row has it."""
    if not (found := find_client(rows, name)):
        return []
    classes = list(found[0][1]["classes"])
    body = []
    for row, client in found:
        counts = [
            client["train"],
            client["valid"],
            client["test"],
            *(client["classes"].get(each, 0) for each in classes),
        ]
        body.append((row.label, [f"{count:,}" for count in counts]))
    columns = ["training", "validation", "test", *map(str, classes)]
    parts: list[Table | Figure] = [Table("client_data", f"Examples of {name}", columns, body, note=_EXAMPLES_NOTE)]
    panels = []
    for kind, model in KINDS.items():
        column = score if kind == "clients" else f"{kind}_{score}"
        curves = [curve for row, _ in found for curve in _make_curves(row, name, column)]
        panels += [Panel(model, "round", score_title(score), curves, (0, 1))] if curves else []
    parts += [Figure("client_scores", f"Scores of {name}", _CURVE_CAPTION, [View("", panels)])] if panels else []
    return parts + ([draw_confusion([row for row, _ in found], name)] if has_confusion else [])


def _make_curves(row: Row, name: str, column: str) -> Iterator[Curve]:
    for run in row.runs:
        scores: dict[int, dict[int, float]] = {}
        clients = [(line["round"], each) for line in run.improvements for each in line["clients"]]
        for round, each in [*clients, *((run.done, each) for each in run.clients)]:
            if each["client"] == name and each.get(column) not in (None, ""):
                scores.setdefault(int(each["seed"]), {})[round] = float(each[column])
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
        matrix = np.sum([each for run in row.runs for each in _count_confusions(run, client)], axis=0)
        shares = matrix / np.maximum(matrix.sum(axis=1, keepdims=True), 1)
        names = list(map(str, row.first.partition_clients[0]["classes"]))
        for view, z in zip(views, (shares, matrix), strict=True):
            heat = Heat(names, names, z.tolist(), "amount", view.name)
            view.panels.append(Panel(row.label, "predicted class", "true class", [heat], rows=(row.label,)))
    name, title = ("client_confusion", f"Predictions for {client}") if client else ("confusion", "Confusion matrices")
    return Figure(name, title, _CONFUSION_CAPTION, views)


def _count_confusions(run: RunResults, client: str | None) -> Iterator[np.ndarray]:
    from fedjax_het import predict  # not before they are needed: other reports read no data and run no model

    from ..configuration import settings
    from ..export import restore_last

    complete, _ = settings.complete_settings(run.settings)
    state, _, _, parts = restore_last(RunDirectory(run.directory), complete)
    federation, clients = parts.federation, parts.federation.describe()[: parts.federation.num_clients]
    is_common = client is None and federation.test is not None and bool(federation.test.count)
    has_own = not is_common and any(name.startswith("personal/") for line in run.lines[-1:] for name in line)
    numbers = [i for i, each in enumerate(clients) if each["client"] == client or (client is None and each["test"])]
    for seed in range(complete["num_seeds"]):
        for number in [None] if is_common else numbers:
            options = {"client": number, "personal": has_own, "run": seed, "seed": complete["seed"]}
            predicted = predict(parts.algorithm, parts.model, federation, state, **options)
            yield predicted.confusion_matrix(federation.num_classes)

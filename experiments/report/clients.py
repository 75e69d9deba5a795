"""What each client got: figures of per_client.csv, and how evenly they are spread."""

from collections.abc import Sequence

import numpy as np

from ..runs.tables import PER_CENT, Shown, Table, Value
from .figures import Curve, Figure, Panel, Points, View
from .rows import Row

KINDS = {
    "clients": "server's model, own test examples",
    "personal": "own model, own test examples",
    "personal_test": "own model, common test set",
}
_TITLES = {"clients": "the server's model", "personal": "own models", "personal_test": "own models, common test set"}
_LESS = Shown(PER_CENT.text, min)
_GINI = Shown(lambda value: f"{value:.3f}", min)
_FAIRNESS = {"mean": "mean", "worst tenth": "worst10", "worst": "min", "best": "max", "deviation": "std"}


def by_client(row: Row, kind: str, score: str) -> dict[str, dict[int, float]]:
    """{client: {seed: score}} after the last round; newcomers and clients without test examples have none.

    Where domains are left out in turn, a client's score is the mean of the runs that it is in.
    """
    column, found = score if kind == "clients" else f"{kind}_{score}", {}
    for run in row.runs:
        for line in run.clients:
            if line["is_newcomer"] == "False" and line.get(column):
                found.setdefault(line["client"], {}).setdefault(int(line["seed"]), []).append(float(line[column]))
    return {client: {s: float(np.mean(v)) for s, v in seeds.items()} for client, seeds in found.items()}


def gini(values: Sequence[float]) -> float:
    """sum_ij |x_i - x_j| / (2 n^2 mean x), 0 = all have the same; 0 where all are 0."""
    x = np.sort(np.asarray(values, float))
    n, total = len(x), x.sum()
    return float((2 * np.arange(1, n + 1) - n - 1) @ x / (n * total)) if total > 0 else 0.0


def _ginis(row: Row, kind: str, score: str) -> list[float]:
    """Of runs that have not written them with their other figures."""
    clients = by_client(row, kind, score)
    seeds = sorted({seed for each in clients.values() for seed in each})
    return [gini([each[seed] for each in clients.values() if seed in each]) for seed in seeds]


def fairness(rows: Sequence[Row], score: str) -> list[Table]:
    """How evenly clients are served after the last round: a table a kind of model that any row has."""
    found = []
    for kind, title in _TITLES.items():
        columns = [*_FAIRNESS, "Gini"]
        body = []
        for row in rows:
            over = [_over(row, f"{kind}/{score}_{statistic}") for statistic in _FAIRNESS.values()]
            if any(over):
                ginis = _over(row, f"{kind}/{score}_gini") or _ginis(row, kind, score)
                body.append((row.label, [*map(_value, over), _value(ginis)]))
        shown = {"deviation": _LESS, "Gini": _GINI}
        if body:
            note = "Over clients, in per cent, then mean ± deviation over seeds. Gini: 0 = all clients have the same."
            found.append(Table(f"fairness_{kind}", f"Fairness over clients: {title}", columns, body, shown, note))
    return found


def _over(row: Row, name: str) -> list[float]:
    """After the last round, of every run and seed."""
    return [
        float("nan") if line[name] is None else line[name]
        for run in row.runs
        for line in run.lines
        if line["round"] == run.done and name in line
    ]


def _value(values: Sequence[float]) -> Value | None:
    return Value(float(np.mean(values)), float(np.std(values)) if len(values) > 1 else None) if len(values) else None


def figure(rows: Sequence[Row], score: str, noun: str) -> Figure | None:
    """Every client a point, or all of them sorted from the worst to the best."""
    views = {"by client": [], "sorted": []}
    for kind, title in KINDS.items():
        found = [(row, clients) for row in rows if (clients := by_client(row, kind, score))]
        if not found:
            continue
        points = [_points(row, clients) for row, clients in found]
        names = list(dict.fromkeys(name for _, clients in found for name in clients))
        views["by client"].append(Panel(title, "client", noun, points, y_range=(0, 1), x_names=names, is_wide=True))
        lines = [_sorted(row, clients) for row, clients in found]
        views["sorted"].append(Panel(title, "share of clients", noun, lines, y_range=(0, 1), is_wide=True))
    if not views["by client"]:
        return None
    caption = (
        "After the last round: the mean over seeds, and a bar from the lowest to the highest. Clients without test "
        "examples are left out. Sorted: every run's clients from its worst to its best."
    )
    return Figure("clients", f"{noun.capitalize()} a client", caption, [View(*each) for each in views.items()])


def _points(row: Row, clients: dict[str, dict[int, float]]) -> Points:
    values = [list(seeds.values()) for seeds in clients.values()]
    means, lows, highs = ([float(over(each)) for each in values] for over in (np.mean, np.min, np.max))
    return Points(row.label, row.number, list(clients), means, lows, highs)


def _sorted(row: Row, clients: dict[str, dict[int, float]]) -> Curve:
    means = sorted(float(np.mean(list(seeds.values()))) for seeds in clients.values())
    shares = [(i + 0.5) / len(means) for i in range(len(means))]
    return Curve(row.label, row.number, shares, means)

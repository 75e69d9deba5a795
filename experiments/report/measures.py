"""The figures of a row by name, seed by seed: after the last round, and of the round that validation chose."""

from collections.abc import Mapping, Sequence

import numpy as np

from ..runs import data_usage, records, results
from ..runs.tables import Table, Value
from .rows import Row, left_out

Seeds = dict[int, float]
LAST, SELECTED = "last", "selected"
_COLUMNS = (
    ("test", "", "test set"),
    ("clients", "_mean", "clients"),
    ("clients", "_weighted", "clients, weighted"),
    ("personal", "_mean", "own models"),
    ("personal_test", "_mean", "own models on the test set"),
    ("newcomers", "_mean", "newcomers"),
)
_NOTE = (
    "The server's model unless own models are named. Mean ± population standard deviation over seeds; clients: mean "
    "over clients; weighted: by their test examples."
)
_WHEN = (
    " last: after the last round; selected: of the round that did best on the clients' validation examples, in which "
    "test examples have no say."
)


def score(rows: Sequence[Row]) -> str:
    """Of what was measured; see `results.score_of`."""
    return results.score_of(name for row in rows for run in row.runs for line in run.lines[:1] for name in line)


def noun(score: str) -> str:
    return {"dice": "Dice", "accuracy": "accuracy"}[score]


def measured(row: Row, when: str, score: str) -> dict[str, Seeds]:
    """{column: {seed: value}}; where domains are left out in turn, the mean of the runs that have it."""
    found: dict[str, dict[int, list[float]]] = {}
    for run in row.runs:
        figures, seeds = _figures(run.lines, when), sorted({line["seed"] for line in run.lines})
        for name, column in _names(figures, score).items():
            for seed, value in zip(seeds, figures[name]["seeds"], strict=True):
                found.setdefault(column, {}).setdefault(seed, []).append(value)
    means = {column: {s: float(np.mean(v)) for s, v in seeds.items()} for column, seeds in found.items()}
    unseen = [column for column in means if column.startswith("unseen ")]
    if len(unseen) > 1:
        everywhere = set.intersection(*(set(means[column]) for column in unseen))
        for name, over in (("unseen, mean", np.mean), ("unseen, worst", np.min)):
            means[name] = {seed: float(over([means[column][seed] for column in unseen])) for seed in sorted(everywhere)}
    return means


def _figures(lines: Sequence[Mapping], when: str) -> Mapping:
    if not lines:
        return {}
    return records.final_figures(lines) if when == LAST else (records.selected_figures(lines) or {}).get("figures", {})


def _names(figures: Mapping, score: str) -> dict[str, str]:
    """{the figure's name in metrics.jsonl: its column}, columns in their order."""
    unseen = [name for name in figures if name.startswith("unseen/") and name.endswith(f"/{score}")]
    columns = {name: f"unseen {name.split('/')[1]}" for name in unseen}
    known = {f"{group}/{score}{over}": column for group, over, column in _COLUMNS}
    return columns | {name: column for name, column in known.items() if name in figures}


def ordered(names: Sequence[str]) -> list[str]:
    """Domains that nobody has first, what they come to after them."""
    known = ["unseen, mean", "unseen, worst", *(column for _, _, column in _COLUMNS)]
    return sorted(dict.fromkeys(names), key=lambda name: known.index(name) if name in known else -1)


def table(rows: Sequence[Row], stars: Mapping[tuple[str, str, str], str], note: str) -> Table:
    """The final figures: each after the last round, and as validation selected it where any row has that.

    stars: {(row's label, column, when): "*"}, note: what they mean.
    """
    kind = score(rows)
    found = {when: [measured(row, when, kind) for row in rows] for when in (LAST, SELECTED)}
    columns = {}
    for name in ordered([name for each in found[LAST] for name in each]):
        is_selected = any(name in each for each in found[SELECTED])
        for when in (LAST, SELECTED) if is_selected else (LAST,):
            columns[f"{name}, {when}" if is_selected else name] = (name, when)
    body = [
        (
            row.label,
            [
                _value(found[when][i].get(name), stars.get((row.label, name, when), ""))
                for name, when in columns.values()
            ],
        )
        for i, row in enumerate(rows)
    ]
    note = " ".join(filter(None, [_NOTE + (_WHEN if any(found[SELECTED]) else ""), _basis(rows), note]))
    return Table("results", f"Final figures: {noun(kind)} in per cent", list(columns), body, note=note)


def _basis(rows: Sequence[Row]) -> str:
    """What each row is trained on, and its figures measured on."""
    runs = [(row.label, left_out(run), run.partition) for row in rows for run in row.runs if run.partition]
    groups = data_usage.groups_of(name for row in rows for run in row.runs for line in run.lines[:1] for name in line)
    return data_usage.describe_runs(runs, [group for group in groups if not group.startswith("unseen/")])


def _value(seeds: Seeds | None, stars: str) -> Value | None:
    if not seeds:
        return None
    values = np.asarray(list(seeds.values()))
    return Value(float(values.mean()), float(values.std()) if len(values) > 1 else None, stars)

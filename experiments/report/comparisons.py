"""Every row against FedAvg, over seeds and over clients."""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from ..runs.tables import Shown, Table, Value
from . import measures, significance
from .clients import by_client
from .rows import Row, baseline
from .significance import LEAST

BASELINE = "fedavg"
_TESTS = {"seeds": "paired t", "clients": "signed rank"}
_STARS = ((0.001, "***"), (0.01, "**"), (0.05, "*"))
_OWN = {"clients": "clients", "own models": "personal", "own models on the test set": "personal_test"}
_SHOWN = {
    "difference": Shown(lambda value: f"{100 * value:+.1f}".replace("-", "−")),
    "pairs": Shown(lambda value: f"{value:.0f}"),
    "p": Shown(lambda value: f"{value:.3f}" if value >= 0.001 else "< 0.001"),
}
_NOTE = (
    "Difference: row minus FedAvg of the same data, model and rounds, in percentage points. Seeds as pairs (same "
    "initial weights, cohorts and batches): paired t-test, two-sided, from 5 seeds on; it speaks about training again. "
    "Clients as pairs (means over seeds): Wilcoxon's signed-rank test, two-sided, where 6 clients or more differ; it "
    "speaks about the clients of this federation, not about training again. p after Holm's correction for the rows "
    "compared on the same figure. * p < 0.05, ** p < 0.01, *** p < 0.001."
)


class Comparison(NamedTuple):
    label: str
    against: str
    column: str
    when: str
    pairs: str  # "seeds" or "clients"
    found: significance.Paired


def comparisons(rows: Sequence[Row]) -> list[Comparison]:
    """Of every row that has a FedAvg to be compared with, on every figure, with p corrected."""
    score, found = measures.score(rows), []
    for row in rows:
        if (base := baseline(row, rows, BASELINE)) is None:
            continue
        for when in (measures.LAST, measures.SELECTED):
            ours, theirs = (measures.measured(each, when, score) for each in (row, base))
            for column in measures.ordered([name for name in ours if name in theirs]):
                found += _compared(row, base, column, when, "seeds", ours[column], theirs[column])
        for column, kind in _OWN.items():
            ours, theirs = (_means(by_client(each, kind, score)) for each in (row, base))
            if _fingerprint(row) == _fingerprint(base) is not None:
                found += _compared(row, base, column, measures.LAST, "clients", ours, theirs)
    return _corrected(found)


def _compared(
    row: Row, base: Row, column: str, when: str, pairs: str, ours: Mapping, theirs: Mapping
) -> list[Comparison]:
    both = [key for key in ours if key in theirs and math.isfinite(ours[key]) and math.isfinite(theirs[key])]
    if not both:
        return []
    test = {"seeds": significance.t_test, "clients": significance.signed_rank}[pairs]
    paired = test([ours[key] for key in both], [theirs[key] for key in both])
    return [Comparison(row.label, base.label, column, when, pairs, paired)]


def _means(clients: Mapping[str, Mapping[int, float]]) -> dict[str, float]:
    return {client: float(np.mean(list(seeds.values()))) for client, seeds in clients.items()}


def _fingerprint(row: Row) -> tuple[str, ...] | None:
    known = [run.partition["fingerprint"] for run in row.runs if run.partition]
    return tuple(known) if len(known) == len(row.runs) else None


def _corrected(found: list[Comparison]) -> list[Comparison]:
    families: dict[tuple, list[int]] = {}
    for i, each in enumerate(found):
        families.setdefault((each.against, each.column, each.when, each.pairs), []).append(i)
    for members in families.values():
        for i, p in zip(members, significance.holm([found[i].found.p for i in members]), strict=True):
            found[i] = found[i]._replace(found=found[i].found._replace(p=p))
    return found


def stars(found: Sequence[Comparison]) -> dict[tuple[str, str, str], str]:
    """{(label, column, when): "*"} by the test over seeds: the table's deviations are over seeds."""
    return {(each.label, each.column, each.when): _star(each.found.p) for each in found if each.pairs == "seeds"}


def _star(p: float | None) -> str:
    return "" if p is None else next((star for level, star in _STARS if p < level), "")


def starring(found: Sequence[Comparison]) -> str:
    """What a reader of the starred table has to know."""
    counts = sorted({each.found.num_pairs for each in found if each.pairs == "seeds"})
    if not counts:
        return ""
    seeds = f"{counts[0]} to {counts[-1]} seeds" if len(counts) > 1 else f"{counts[0]} seed{'s' * (counts[0] > 1)}"
    if counts[-1] < LEAST["seeds"]:
        return f"No stars: too few pairs for a test against FedAvg ({seeds}; {LEAST['seeds']} are the least)."
    return f"Stars: against FedAvg, paired t-test over {seeds}, Holm-corrected (* 0.05, ** 0.01, *** 0.001)."


def table(found: Sequence[Comparison]) -> Table:
    """A line a comparison."""
    columns = ["against", "figure", "round", "pairs are", "pairs", "difference", "95 % interval", "test", "p"]
    body = [(each.label, _line(each)) for each in found]
    return Table("significance", "Against FedAvg", columns, body, _SHOWN, _NOTE)


def _line(each: Comparison) -> list[Value | str | None]:
    difference, interval, p, num_pairs = each.found
    ends = "" if interval is None else " to ".join(_SHOWN["difference"].text(end) for end in interval)
    few = "too few pairs" if num_pairs < LEAST[each.pairs] else "too few pairs differ"
    said = few if p is None else Value(p, None, f" {_star(p)}".rstrip())
    about = [each.against, each.column, each.when, each.pairs]
    return [*about, Value(num_pairs), Value(difference), ends, _TESTS[each.pairs], said]

"""Is a row better than FedAvg, or was it luck: paired tests over seeds and over clients."""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from scipy import stats

from experiments.report import measures
from experiments.report.clients import by_client
from experiments.report.rows import Row, baseline
from experiments.tables import Shown, Table, Value

BASELINE = "fedavg"
LEAST = {"seeds": 5, "clients": 6}
"""Pairs under which no p-value is told. Six: with five, Wilcoxon's p cannot come under 0.05."""

_TESTS = {"seeds": "paired t", "clients": "Wilcoxon signed-rank"}
_STARS = ((0.001, "***"), (0.01, "**"), (0.05, "*"))
_OWN = {"clients": "clients", "own models": "personal", "own models on the test set": "personal_test"}
_SHOWN = {
    "difference": Shown(lambda value: f"{100 * value:+.1f}".replace("-", "−")),
    "pairs": Shown(lambda value: f"{value:.0f}"),
    "p": Shown(lambda value: f"{value:.3f}" if value >= 0.001 else "< 0.001"),
}
_NOTE = (
    "Difference: row minus FedAvg of the same data, model and rounds, in percentage points. Seeds as pairs (same initial "
    "weights, cohorts and batches): paired t-test, two-sided, from 5 seeds on; it speaks about training again. Clients as "
    "pairs (means over seeds): Wilcoxon's signed-rank test, two-sided, from 6 clients that differ on; it speaks about the "
    "clients of this federation, not about training again. p after Holm over the rows compared on the same figure. "
    "* p < 0.05, ** p < 0.01, *** p < 0.001."
)


class Paired(NamedTuple):
    difference: float  # mean of a - b
    interval: tuple[float, float] | None  # 95 %, of the mean, by Student's t
    p: float | None  # two-sided; None where there are too few pairs, or all differ alike
    num_pairs: int


class Comparison(NamedTuple):
    label: str
    against: str
    column: str
    when: str
    pairs: str  # "seeds" or "clients"
    found: Paired


def t_test(a: Sequence[float], b: Sequence[float]) -> Paired:
    """Student's t-test of the differences a - b; its interval from two pairs on, its p from `LEAST`."""
    differences = np.asarray(a, float) - np.asarray(b, float)
    n, mean = len(differences), float(differences.mean())
    if n < 2 or np.ptp(differences) == 0:
        return Paired(mean, None, None, n)
    error = float(differences.std(ddof=1)) / math.sqrt(n)
    half = float(stats.t.ppf(0.975, n - 1)) * error
    p = float(2 * stats.t.sf(abs(mean / error), n - 1)) if n >= LEAST["seeds"] else None
    return Paired(mean, (mean - half, mean + half), p, n)


def signed_rank(a: Sequence[float], b: Sequence[float]) -> Paired:
    """Wilcoxon's test of the differences a - b; pairs without a difference have no say."""
    differences = np.asarray(a, float) - np.asarray(b, float)
    telling = differences[np.abs(differences) > 1e-12]
    p = float(stats.wilcoxon(telling).pvalue) if len(telling) >= LEAST["clients"] else None
    return Paired(float(differences.mean()), None, p, len(differences))


def holm(ps: Sequence[float | None]) -> list[float | None]:
    """Holm's correction for so many tests: p_(k) -> max over j <= k of min(1, (m - j + 1) p_(j)); None stays None."""
    order = sorted((i for i, p in enumerate(ps) if p is not None), key=lambda i: ps[i])
    corrected, highest = list(ps), 0.0
    for k, i in enumerate(order):
        highest = max(highest, min(1.0, (len(order) - k) * ps[i]))
        corrected[i] = highest
    return corrected


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


def _compared(row: Row, base: Row, column: str, when: str, pairs: str, ours: Mapping, theirs: Mapping):
    both = [key for key in ours if key in theirs and math.isfinite(ours[key]) and math.isfinite(theirs[key])]
    if not both:
        return []
    test = {"seeds": t_test, "clients": signed_rank}[pairs]
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
        for i, p in zip(members, holm([found[i].found.p for i in members]), strict=True):
            found[i] = found[i]._replace(found=found[i].found._replace(p=p))
    return found


def stars(found: Sequence[Comparison]) -> dict[tuple[str, str, str], str]:
    """{(label, column, when): "*"} by the test over seeds: the table's deviations are over seeds."""
    return {
        (each.label, each.column, each.when): next((star for level, star in _STARS if each.found.p < level), "")
        for each in found
        if each.pairs == "seeds" and each.found.p is not None
    }


def starring(found: Sequence[Comparison]) -> str:
    """What a reader of the starred table has to know."""
    counts = sorted({each.found.num_pairs for each in found if each.pairs == "seeds"})
    if not counts:
        return ""
    pairs = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    if counts[-1] < LEAST["seeds"]:
        return (
            f"No stars: {pairs} seeds to pair are too few for a test against FedAvg ({LEAST['seeds']} are the least)."
        )
    return f"Stars: against FedAvg, paired t-test over {pairs} seeds, Holm-corrected (* 0.05, ** 0.01, *** 0.001)."


def table(found: Sequence[Comparison]) -> Table:
    """A line a comparison."""
    columns = ["against", "figure", "pairs are", "pairs", "difference", "95 % interval", "test", "p"]
    return Table(
        "significance", "Against FedAvg", columns, [(each.label, _line(each)) for each in found], _SHOWN, _NOTE
    )


def _line(each: Comparison) -> list[Value | str | None]:
    found = each.found
    interval = "" if found.interval is None else " to ".join(_SHOWN["difference"].text(end) for end in found.interval)
    few = "too few pairs" if found.num_pairs < LEAST[each.pairs] else "too few pairs differ"
    p = (
        few
        if found.p is None
        else Value(found.p, None, next((f" {star}" for level, star in _STARS if found.p < level), ""))
    )
    figure = f"{each.column}, {each.when}"
    return [
        each.against,
        figure,
        each.pairs,
        Value(found.num_pairs),
        Value(found.difference),
        interval,
        _TESTS[each.pairs],
        p,
    ]

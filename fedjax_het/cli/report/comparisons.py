"""Comparison of every row with FedAvg over seeds and over clients, by paired tests with correction for many tests."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy import stats

from fedjax_het.cli.report import measures
from fedjax_het.cli.report.rows import Row, find_baseline, find_score
from fedjax_het.cli.runs.data_usage import CLIENT_GROUPS, GROUPS
from fedjax_het.cli.runs.results import client_scores
from fedjax_het.cli.runs.tables import ColumnFormat, Table, Value
from fedjax_het.cli.study.comparison import correct_by_holm

BASELINE = "fedavg"
MIN_PAIRS = {"seeds": 5, "clients": 6}
"""The fewest pairs with a p-value. Six clients, because with five Wilcoxon's p cannot be below 0.05."""
_STARS = ((0.001, "***"), (0.01, "**"), (0.05, "*"))
_FORMATS = {
    "difference": ColumnFormat(lambda value: f"{100 * value:+.1f}".replace("-", "−")),
    "pairs": ColumnFormat(lambda value: f"{value:.0f}"),
    "p": ColumnFormat(lambda value: f"{value:.3f}" if value >= 0.001 else "< 0.001"),
}
_NOTE = (
    "Difference: row minus FedAvg with the same data, model and rounds, in percentage points. Pairs of seeds (same "
    "initial weights, cohorts and batches): two-sided paired t-test with at least 5 seeds; it generalizes to other "
    "seeds. Pairs of clients (means over seeds): two-sided Wilcoxon signed-rank test if at least 6 clients differ; it "
    "generalizes to other clients of this federation, not to other seeds. p: corrected by Holm's method for the rows "
    "that are compared on the same figure. * p < 0.05, ** p < 0.01, *** p < 0.001."
)


# ---- tests -----------------------------------------------------------------------------------------------------------
class PairedTest(NamedTuple):
    difference: float  # mean of a - b
    interval: tuple[float, float] | None  # 95 %, of the mean, by Student's t
    p: float | None  # two-sided; None with too few pairs, or with equal differences
    num_pairs: int


def paired_t_test(a: Sequence[float], b: Sequence[float]) -> PairedTest:
    """Apply Student's t-test to the differences a - b; the interval needs two pairs, p `MIN_PAIRS`."""
    differences = np.asarray(a, float) - np.asarray(b, float)
    n, mean = len(differences), float(differences.mean())
    if n < 2 or np.ptp(differences) == 0:
        return PairedTest(mean, None, None, n)
    result = stats.ttest_1samp(differences, 0)
    low, high = map(float, result.confidence_interval(0.95))
    return PairedTest(mean, (low, high), float(result.pvalue) if n >= MIN_PAIRS["seeds"] else None, n)


def signed_rank_test(a: Sequence[float], b: Sequence[float]) -> PairedTest:
    """Apply Wilcoxon's signed-rank test to the differences a - b, without pairs that do not differ."""
    differences = np.asarray(a, float) - np.asarray(b, float)
    nonzero = differences[np.abs(differences) > 1e-12]
    p = float(stats.wilcoxon(nonzero).pvalue) if len(nonzero) >= MIN_PAIRS["clients"] else None
    return PairedTest(float(differences.mean()), None, p, len(differences))


_TESTS = {"seeds": ("paired t", paired_t_test), "clients": ("signed rank", signed_rank_test)}


# ---- comparisons -----------------------------------------------------------------------------------------------------
class Comparison(NamedTuple):
    label: str
    against: str
    column: str
    when: str
    pairs: str  # "seeds" or "clients"
    test: PairedTest


def compare_with_baseline(rows: Sequence[Row]) -> list[Comparison]:
    """Compare every row that has a FedAvg baseline with it, on every figure, with corrected p."""
    score, found = find_score(rows), []
    for row in rows:
        if (base := find_baseline(row, rows, BASELINE)) is None:
            continue
        pairs = []
        for when in (measures.LAST, measures.SELECTED):
            ours, theirs = (measures.read_figures(member, when, score) for member in (row, base))
            columns = measures.order_columns([name for name in ours if name in theirs])
            pairs += [(column, when, "seeds", ours[column], theirs[column]) for column in columns]
        if _fingerprints(row) == _fingerprints(base) is not None:
            for kind in CLIENT_GROUPS:
                clients = (client_scores(member.runs, kind, score) for member in (row, base))
                means = [{name: float(np.mean(list(x.values()))) for name, x in scores.items()} for scores in clients]
                pairs.append((GROUPS[kind].title, measures.LAST, "clients", *means))
        for column, when, kind, ours, theirs in pairs:
            shared = [x for x in ours if x in theirs and math.isfinite(ours[x]) and math.isfinite(theirs[x])]
            if shared:
                test = _TESTS[kind][1]([ours[x] for x in shared], [theirs[x] for x in shared])
                found.append(Comparison(row.label, base.label, column, when, kind, test))
    families: dict[tuple, list[int]] = {}
    for i, comparison in enumerate(found):  # p is corrected among the rows that are compared on the same figure
        if comparison.test.p is not None:
            family = (comparison.against, comparison.column, comparison.when, comparison.pairs)
            families.setdefault(family, []).append(i)
    for members in families.values():
        for i, p in zip(members, correct_by_holm([found[i].test.p for i in members]), strict=True):
            found[i] = found[i]._replace(test=found[i].test._replace(p=p))
    return found


def _fingerprints(row: Row) -> tuple[str, ...] | None:
    known = [run.partition["fingerprint"] for run in row.runs if run.partition]
    return tuple(known) if len(known) == len(row.runs) else None


def significance_stars(comparisons: Sequence[Comparison]) -> dict[tuple[str, str, str], str]:
    """Return {(label, column, when): "*"} by the test over seeds, because the table's deviations are over seeds."""
    return {(c.label, c.column, c.when): _stars_of(c.test.p) for c in comparisons if c.pairs == "seeds"}


def _stars_of(p: float | None) -> str:
    return "" if p is None else next((stars for level, stars in _STARS if p < level), "")


def describe_stars(comparisons: Sequence[Comparison]) -> str:
    """Explain the stars of a table, or why there are none."""
    counts = sorted({comparison.test.num_pairs for comparison in comparisons if comparison.pairs == "seeds"})
    if not counts:
        return ""
    seeds = f"{counts[0]} to {counts[-1]} seeds" if len(counts) > 1 else f"{counts[0]} seed{'s' * (counts[0] > 1)}"
    if counts[-1] < MIN_PAIRS["seeds"]:
        return f"No stars: too few pairs for a test against FedAvg ({seeds}; at least {MIN_PAIRS['seeds']} are needed)."
    return f"Stars: against FedAvg, paired t-test over {seeds}, Holm-corrected (* 0.05, ** 0.01, *** 0.001)."


def make_table(comparisons: Sequence[Comparison]) -> Table:
    """Tabulate the comparisons, one per line."""
    columns = ["against", "figure", "round", "pairs are", "pairs", "difference", "95 % interval", "test", "p"]
    body = [(comparison.label, _format_comparison(comparison)) for comparison in comparisons]
    return Table("significance", "Against FedAvg", columns, body, _FORMATS, _NOTE)


def _format_comparison(comparison: Comparison) -> list[Value | str | None]:
    difference, interval, p, num_pairs = comparison.test
    ends = "" if interval is None else " to ".join(_FORMATS["difference"].text(end) for end in interval)
    reason = "too few pairs" if num_pairs < MIN_PAIRS[comparison.pairs] else "too few pairs differ"
    result = reason if p is None else Value(p, None, f" {_stars_of(p)}".rstrip())
    names = [comparison.against, comparison.column, comparison.when, comparison.pairs]
    return [*names, Value(num_pairs), Value(difference), ends, _TESTS[comparison.pairs][0], result]

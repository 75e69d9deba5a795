"""Better, or luck? Paired tests of two series of figures, and p-values of many tests at once."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy import stats

LEAST = {"seeds": 5, "clients": 6}
"""Pairs under which no p-value is told. Six: with five, Wilcoxon's p cannot come under 0.05."""


class Paired(NamedTuple):
    difference: float  # mean of a - b
    interval: tuple[float, float] | None  # 95 %, of the mean, by Student's t
    p: float | None  # two-sided; None where there are too few pairs, or all differ alike
    num_pairs: int


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

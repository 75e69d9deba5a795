"""Verdicts on claims, by a rule that was fixed before anything was trained.

The difference of the two sides of a claim, seed by seed and in the direction of the claim, has a mean and a 95 %
interval (Student's t):

    it lies above 0                                   -> holds
    it lies below 0, or within the margin around 0    -> does not hold
    otherwise                                         -> cannot tell

The margin is what would be negligible. A claim against several others holds if it does against each, and does not hold
if it fails against one, where a difference in the other direction counts after Holm's correction for their number.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from fedjax_het.cli.study.comparison import Interval, correct_by_holm, paired_p_value

HOLDS, FAILS, OPEN, NOT_RUN = "holds", "does not hold", "cannot tell", "not yet run"
_LEVEL = 0.05


class Quantity(NamedTuple):
    """What a claim is about.

    Attributes:
        title: its name and unit.
        margin: the largest difference that is negligible; of the other side's mean if `is_relative`.
        is_lower: whether the claim is that it is lower.
        is_relative: see `margin`.
        digits: after the point.
    """

    title: str
    margin: float
    is_lower: bool = False
    is_relative: bool = False
    digits: int = 1


class Claim(NamedTuple):
    """The statement that one method is better than others.

    Attributes:
        text: in words, without the others.
        source: where the paper says so; empty for a question of our own.
        method: the one that is claimed to be better.
        others: those that it is compared with.
        quantity: in what; the name of a measure of the experiment.
    """

    text: str
    source: str
    method: str
    others: Sequence[str]
    quantity: str = "score"


class Line(NamedTuple):
    """A verdict, on a claim against one other method, or against all of them without numbers of its own."""

    text: str
    source: str
    verdict: str
    quantity: Quantity
    difference: Interval | None = None  # in the direction of the claim
    method: Interval | None = None
    other: Interval | None = None
    count: str = ""  # of all of them: against how many of those that have been run it holds


Values = Mapping[tuple[str, str], Sequence[float]]
"""{(name of a measure, method): one value per seed}, means over columns; what has not been run is missing."""


def decide(difference: Interval, margin: float) -> str:
    """Decide on one difference, which is positive in the direction of the claim.

    Args:
        difference: its mean and interval; nothing can be told without an interval.
        margin: what is negligible.
    """
    if difference.mean - difference.half_width > 0:
        return HOLDS
    if difference.mean + difference.half_width < 0 or _is_negligible(difference, margin):
        return FAILS
    return OPEN


def decide_all(differences: Sequence[Sequence[float]], margins: Sequence[float]) -> str:
    """Decide whether a claim holds against every other method.

    Args:
        differences: from each other method, one per seed; none if one of the two has not been run.
        margins: for each.
    """
    known = [(each, margin) for each, margin in zip(differences, margins, strict=True) if each]
    p_values = correct_by_holm([paired_p_value(each, [0.0] * len(each)) for each, _ in known])
    verdicts = []
    for (each, margin), p in zip(known, p_values, strict=True):
        difference = Interval.of(each)
        verdicts.append(decide(difference, margin))
        if verdicts[-1] == FAILS and (p < _LEVEL or _is_negligible(difference, margin)):
            return FAILS
    if len(known) < len(differences):
        return NOT_RUN
    return HOLDS if set(verdicts) == {HOLDS} else OPEN


def _is_negligible(difference: Interval, margin: float) -> bool:
    return abs(difference.mean) + difference.half_width <= margin


def judge(claim: Claim, quantity: Quantity, values: Values) -> list[Line]:
    """Judge a claim against each other method and, where there are several, against all of them."""
    lines, differences, margins = [], [], []
    better = values.get((claim.quantity, claim.method), ())
    for name in claim.others:
        other = values.get((claim.quantity, name), ())
        text = f"{claim.text} {name}"
        difference = _subtract(better, other, quantity) if len(better) and len(other) else []
        margin = quantity.margin
        if difference and quantity.is_relative:
            margin *= abs(Interval.of(other).mean)
        differences.append(difference)
        margins.append(margin)
        if not difference:
            lines.append(Line(text, claim.source, NOT_RUN, quantity))
            continue
        sides = Interval.of(better), Interval.of(other)
        found = Interval.of(difference)
        lines.append(Line(text, claim.source, decide(found, margin), quantity, found, *sides))
    if len(lines) > 1:
        run = [line.verdict for line in lines if line.verdict != NOT_RUN]
        count = f"{run.count(HOLDS)} of {len(run)} hold" if run else ""
        text = f"{claim.text} all of {', '.join(claim.others)}"
        lines.insert(0, Line(text, claim.source, decide_all(differences, margins), quantity, count=count))
    return lines


def _subtract(better: Sequence[float], other: Sequence[float], quantity: Quantity) -> list[float]:
    difference = np.subtract(better, other) * (-1 if quantity.is_lower else 1)
    return difference.tolist()

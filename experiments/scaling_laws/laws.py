"""Laws of client counts: quantities that points have, and lines that are fitted to them."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from ..tradeoffs import ALGORITHMS
from .points import Plan, Row


class Fit(NamedTuple):
    """y = a + b x, and the largest relative deviation of a point from it."""

    a: float
    b: float
    deviation: float


def fit_line(x: Sequence[float], y: Sequence[float]) -> Fit:
    """Fit a line to positive y by least squares of relative deviations."""
    design = np.stack([np.ones(len(x)), np.array(x, float)], axis=1) / np.array(y, float)[:, None]
    (a, b), *_ = np.linalg.lstsq(design, np.ones(len(y)))
    return Fit(float(a), float(b), float(np.max(np.abs(design @ [a, b] - 1))))


class Quantity(NamedTuple):
    """Something that is measured at a point, and the laws that are fitted to it.

    Attributes:
        label: with its unit.
        read: row -> its values, one or several; none where it was not measured.
        laws: {"cohort" or "population": (the law, the function of it in which the law is linear)}.
        axes: over which it is drawn.
        y_scale: "log" or "linear".
    """

    label: str
    read: Callable[[Row], Sequence[float]]
    laws: Mapping[str, tuple[str, Callable[[float], float]]]
    axes: tuple[str, ...] = ("cohort", "population")
    y_scale: str = "linear"


def list_quantities(plan: Plan, targets: Sequence[float]) -> list[Quantity]:
    """List what is drawn and fitted. K: clients per round, N: clients."""

    def count_rounds(number: int) -> Quantity:
        law = {"cohort": ("a + b / K", lambda cohort: 1 / cohort)}
        axes = ("cohort",) if number == 0 else ()
        label = f"rounds to {targets[number]:g} %"
        return Quantity(label, lambda row: [each] if (each := row.targets[number]) else [], law, axes, "log")

    logs = {"cohort": ("a + b log10 K", math.log10), "population": ("a + b log10 N", math.log10)}
    linear = {"cohort": ("a + b K", float), "population": ("a + b N", float)}
    return [
        Quantity(f"accuracy after {plan.rounds:,} rounds, %", lambda row: row.by_rounds, logs),
        Quantity(f"accuracy after {plan.visits:,} visits, %", lambda row: row.by_visits, logs),
        count_rounds(0),
        count_rounds(1),
        Quantity("seconds per round", lambda row: row.seconds, linear, y_scale="log"),
        Quantity("peak MB", lambda row: [row.peak_mb] if row.peak_mb else [], linear, ("population",), "log"),
    ]


def select_rows(plan: Plan, rows: Sequence[Row], axis: str, algorithm: str) -> list[Row]:
    """Select the rows of an algorithm over clients per round, "cohort", or over the number of clients, "population"."""
    own = [row for row in rows if row.place.algorithm == algorithm]
    if axis == "cohort":
        return [row for row in own if row.place.population == plan.population and row.place.cohort in plan.cohorts]
    return [row for row in own if row.place.cohort == plan.cohort and row.place.population in plan.populations]


def fit_laws(plan: Plan, targets: Sequence[float], rows: Sequence[Row]) -> list[list[object]]:
    """Fit each law to the medians at three points or more; return the lines of the table of laws."""
    lines: list[list[object]] = []
    for quantity in list_quantities(plan, targets):
        for axis, (law, transform) in quantity.laws.items():
            for name in ALGORITHMS:
                found = [row for row in select_rows(plan, rows, axis, name) if quantity.read(row)]
                if len(found) < 3:
                    continue
                x = [transform(getattr(row.place, axis)) for row in found]
                a, b, deviation = fit_line(x, [float(np.median(quantity.read(row))) for row in found])
                numbers = [f"{value:.4g}" for value in (a, b, b / a, 100 * deviation)]
                lines.append([quantity.label, law, name, *numbers, len(found)])
    return lines

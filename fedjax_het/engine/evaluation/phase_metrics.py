"""Accuracy on the data of each phase, and what a sequence of evaluations says about forgetting and recovery."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from fedjax_het.data.phases import Phases
from fedjax_het.types import HostArray


class PhaseMetrics(NamedTuple):
    """Accuracy on the test examples of each phase: the mean over clients that have some. Leaves have the axes of runs.

    Args:
        starts: The first round of each phase, [phases].
        present: The phase of the last round, [].
        following: The phase of the next round, [].
        is_first: Whether no earlier phase has the same data, [phases].
        accuracy: The server's model, [phases].
        personal_accuracy: The personal models, [phases]; None if nothing is personal.
    """

    starts: HostArray
    present: HostArray
    following: HostArray
    is_first: HostArray
    accuracy: HostArray
    personal_accuracy: HostArray | None = None


def measure_phases(
    phases: Phases, round: int, totals: HostArray, personal_totals: HostArray | None = None
) -> PhaseMetrics:
    """Measure the accuracy in all phases, given sums of scores by version of clients' data.

    Args:
        phases: The phases.
        round: The number of completed rounds.
        totals: Sums over the test examples of each version, [..., versions, scores].
        personal_totals: The same for personal models.
    """
    leading = np.shape(totals)[:-2]
    present, following = (np.full(leading, phases.number(number)) for number in (max(round - 1, 0), round))
    is_first = phases.first_equal == np.arange(len(phases.starts))
    is_first, starts = (np.broadcast_to(x, (*leading, len(x))) for x in (is_first, phases.starts))
    others = None if personal_totals is None else _mean_accuracy(phases, personal_totals)
    return PhaseMetrics(starts, present, following, is_first, _mean_accuracy(phases, totals), others)


def _mean_accuracy(phases: Phases, totals: HostArray) -> Float[np.ndarray, "*runs phases"]:
    count, correct = (np.asarray(totals, np.float64)[..., phases.rows, score] for score in (0, 2))
    accuracy = np.where(count > 0, correct / np.where(count > 0, count, 1), np.nan)
    has_examples = count > 0
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(has_examples, accuracy, 0).sum(axis=-1) / has_examples.sum(axis=-1)


def flatten_phases(metrics: PhaseMetrics) -> dict[str, np.ndarray]:
    """Named numbers: the accuracy on the data of the next round, its mean over phases so far, and that in each phase.

    Of phases with equal data, the first stands for all.
    """
    numbers = {"phases/present": np.asarray(metrics.present)}
    is_first, following = np.asarray(metrics.is_first), np.asarray(metrics.following)[..., None]
    is_past = is_first & (np.arange(is_first.shape[-1]) <= np.asarray(metrics.present)[..., None])
    columns = np.flatnonzero(is_first.reshape(-1, is_first.shape[-1])[0])
    groups = {"": metrics.accuracy, "personal_": metrics.personal_accuracy}
    for group, values in groups.items():
        if values is None:
            continue
        values = np.asarray(values)
        numbers[f"phases/{group}accuracy_next"] = np.take_along_axis(values, following, axis=-1)[..., 0]
        numbers[f"phases/{group}accuracy_average"] = np.where(is_past, values, 0).sum(-1) / is_past.sum(-1)
        numbers |= {f"phases/{group}accuracy_{phase}": values[..., phase] for phase in columns}
    return numbers

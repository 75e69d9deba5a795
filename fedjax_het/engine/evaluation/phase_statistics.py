"""Statistics of a sequence of phases: forgetting, transfer between phases, and recovery from a drift."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float, Int

from fedjax_het.engine.evaluation.phase_metrics import PhaseMetrics
from fedjax_het.validation import PositiveFraction, validate_arguments

RECOVERED = 0.95
"""The fraction of the best accuracy before a drift at which a model has recovered."""


def continual_statistics(
    accuracy: Float[np.ndarray, "*axes phases phases"],
    random_accuracy: float | Float[np.ndarray, "phases"] = np.nan,
    num_examples: Int[np.ndarray, "phases"] | None = None,
) -> dict[str, np.ndarray]:
    """Measure what a model remembers of earlier phases, and what these contribute to later ones.

    With a_tj the accuracy on the data of phase j at the end of phase t, both from 0, after phase t:

        average_accuracy:    mean of a_tj over j <= t
        forgetting:          mean of max_{j <= l < t} a_lj - a_tj over j < t
        backward_transfer:   mean of a_tj - a_jj over j < t
        forward_transfer:    mean of a_{j-1,j} - r_j over 1 <= j <= t

    learning_accuracy is the mean of a_jj, and average_incremental_accuracy that of average_accuracy, over all phases.
    class_incremental_accuracy is the mean of a_tj over j <= t weighted by test examples.

    Args:
        accuracy: a [..., t, j]; NaN where it was not measured, and everything that depends on it is NaN, too.
        random_accuracy: r_j, the accuracy of a model that has not been trained on anything.
        num_examples: The numbers of test examples; None: without class_incremental_accuracy.

    Returns:
        {name: [..., phases], or [...] for the means over all phases}. Forgetting and transfers after phase 0 are NaN.

    References:
        Lopez-Paz and Ranzato, Gradient Episodic Memory, NeurIPS 2017 (transfers). Chaudhry et al., Riemannian Walk,
        ECCV 2018 (forgetting). Rebuffi et al., iCaRL, CVPR 2017 (average incremental accuracy).
    """
    accuracy = np.asarray(accuracy, np.float64)
    num = accuracy.shape[-1]
    after, of = np.indices((num, num))
    learned = np.diagonal(accuracy, axis1=-2, axis2=-1)
    best = np.maximum.accumulate(np.where(of <= after, accuracy, -np.inf), axis=-2)
    best = np.concatenate([np.full_like(best[..., :1, :], -np.inf), best[..., :-1, :]], axis=-2)
    gain = np.diagonal(accuracy, offset=1, axis1=-2, axis2=-1) - np.broadcast_to(random_accuracy, num)[1:]
    gain = np.concatenate([np.zeros_like(learned[..., :1]), gain], axis=-1)
    weights = np.ones(num) if num_examples is None else np.asarray(num_examples, np.float64)

    def mean(values: np.ndarray, is_counted: np.ndarray, weights: np.ndarray = np.ones(num)) -> np.ndarray:
        total = np.where(is_counted, values * weights, 0).sum(axis=-1)
        with np.errstate(invalid="ignore"):
            return total / np.where(is_counted, weights, 0).sum(axis=-1)

    average = mean(accuracy, of <= after)
    statistics = {
        "average_accuracy": average,
        "average_incremental_accuracy": average.mean(axis=-1),
        "learning_accuracy": learned.mean(axis=-1),
        "forgetting": mean(best - accuracy, of < after),
        "backward_transfer": mean(accuracy - learned[..., None, :], of < after),
        "forward_transfer": mean(np.broadcast_to(gain[..., None, :], accuracy.shape), (of >= 1) & (of <= after)),
    }
    if num_examples is not None:
        statistics["class_incremental_accuracy"] = mean(accuracy, of <= after, weights)
    return statistics


@validate_arguments
def drift_statistics(
    accuracy: Float[np.ndarray, "steps *axes"], step: int, fraction: PositiveFraction = RECOVERED
) -> dict[str, np.ndarray]:
    """Measure the effect of a drift on a series of accuracies.

    Args:
        accuracy: The accuracy at each step, on the data of that step.
        step: The first step on other data, at least 1.
        fraction: The fraction of the best accuracy before the drift at which a model has recovered.

    Returns:
        {"drop": the last accuracy before the drift minus the first one after it, "recovery": the steps from the drift
        to the first recovered one, -1 if there is none}, [*axes].
    """
    before, after = np.asarray(accuracy, np.float64)[:step], np.asarray(accuracy, np.float64)[step:]
    has_recovered = after >= fraction * before.max(axis=0)
    steps = np.where(has_recovered.any(axis=0), has_recovered.argmax(axis=0), -1)
    return {"drop": before[-1] - after[0], "recovery": steps}


def summarize_phases(
    rounds: Sequence[int], metrics: PhaseMetrics, random_accuracy: float = np.nan
) -> dict[str, np.ndarray]:
    """Summarize the evaluations of a run by phase.

    The end of a phase is its last evaluation. Drop and recovery are those of the accuracy on the data of the next
    round, before training on them (prequential). Without an evaluation in a phase, what depends on it is NaN.

    Args:
        rounds: The rounds of the evaluations.
        metrics: The metrics, leaves [runs, evaluations, ...].
        random_accuracy: See `continual_statistics`.

    Returns:
        The vectors of `continual_statistics`, and the "drop" and "recovery", in rounds, at the start of each phase: -1
        if the model did not recover, NaN for phase 0; all [runs, phases]. The same for personal models, if there are
        any, with names such as "personal_forgetting".
    """
    numbers, starts = np.array(rounds), np.asarray(metrics.starts)[0, 0]
    present, following = np.asarray(metrics.present)[0], np.asarray(metrics.following)
    summary = {}
    for group, values in (("", metrics.accuracy), ("personal_", metrics.personal_accuracy)):
        if values is None:
            continue
        accuracy = np.asarray(values, np.float64)
        matrix = np.full((len(accuracy), len(starts), len(starts)), np.nan)
        for end, phase in enumerate(present):
            matrix[:, phase] = accuracy[:, end]  # the last one of a phase remains
        vectors = continual_statistics(matrix, random_accuracy)
        summary |= {group + name: x for name, x in vectors.items() if x.ndim == matrix.ndim - 1}
        next_accuracy = np.take_along_axis(accuracy, following[..., None], axis=-1)[..., 0]
        changes = _measure_changes(numbers, starts, next_accuracy)
        summary |= {group + name: x for name, x in changes.items()}
    return summary


def _measure_changes(numbers: np.ndarray, starts: np.ndarray, accuracy: np.ndarray) -> dict[str, np.ndarray]:
    """{"drop", "recovery" in rounds: [runs, phases]} at the starts of phases, given the accuracy [runs, rounds]."""
    drop, recovery = np.full((2, len(accuracy), len(starts)), np.nan)
    for phase, start in enumerate(starts.tolist()):
        step = int(np.searchsorted(numbers, start))
        if phase and 0 < step < len(numbers):
            measured = drift_statistics(accuracy.T, step)
            steps = measured["recovery"]
            drop[:, phase] = measured["drop"]
            recovery[:, phase] = np.where(steps < 0, -1, numbers[step + np.maximum(steps, 0)] - start)
    return {"drop": drop, "recovery": recovery}

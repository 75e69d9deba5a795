"""Metrics of numbers, tags and ranks. Labels are in their units, and unknown tags are -1, which count nowhere.

Metrics of several targets or tags are means of the values `*_by_output`, without undefined ones.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import scipy  # imports its subpackages lazily
from jaxtyping import Float, Int

Numbers = Float[np.ndarray, "examples targets"]
Scores = Float[np.ndarray, "examples tags"]
Tags = Int[np.ndarray, "examples tags"]
ByOutput = Callable[[np.ndarray, np.ndarray], Float[np.ndarray, " outputs"]]


def mean_over_outputs(measure: ByOutput) -> Callable[[np.ndarray, np.ndarray], float]:
    """The mean of a metric over targets or tags, without those for which it is undefined; NaN if it is for all."""

    def mean(predictions: np.ndarray, labels: np.ndarray) -> float:
        values = measure(predictions, labels)
        is_defined = ~np.isnan(values)
        return float(values[is_defined].mean()) if is_defined.any() else float("nan")

    return mean


# ---- of numbers ------------------------------------------------------------------------------------------------------
def mse_by_output(predictions: Numbers, labels: Numbers) -> Float[np.ndarray, " targets"]:
    """Mean squared error of each target."""
    return np.square(predictions - labels).mean(axis=0)


def rmse_by_output(predictions: Numbers, labels: Numbers) -> Float[np.ndarray, " targets"]:
    """Root of the mean squared error of each target."""
    return np.sqrt(mse_by_output(predictions, labels))


def mae_by_output(predictions: Numbers, labels: Numbers) -> Float[np.ndarray, " targets"]:
    """Mean absolute error of each target."""
    return np.abs(predictions - labels).mean(axis=0)


def r2_by_output(predictions: Numbers, labels: Numbers) -> Float[np.ndarray, " targets"]:
    """Coefficient of determination of each target: 1 - sum (y - p)^2 / sum (y - mean y)^2.

    Of constant targets 1 if all predictions are correct, otherwise 0; NaN for a single example.
    """
    if len(labels) < 2:
        return np.full(labels.shape[1], np.nan)
    errors = np.square(predictions - labels).sum(axis=0)
    spread = np.square(labels - labels.mean(axis=0)).sum(axis=0)
    is_constant = spread == 0
    return np.where(is_constant, errors == 0, 1 - errors / np.where(is_constant, 1, spread))


def smape_by_output(predictions: Numbers, labels: Numbers) -> Float[np.ndarray, " targets"]:
    """Symmetric mean absolute percentage error of each target: mean 2 |y - p| / (|y| + |p|), from 0 to 2."""
    total = np.abs(labels) + np.abs(predictions)
    return (2 * np.abs(predictions - labels) / np.where(total > 0, total, 1)).mean(axis=0)


# ---- of tags ---------------------------------------------------------------------------------------------------------
def average_precision_by_output(scores: Scores, tags: Tags) -> Float[np.ndarray, " tags"]:
    """Average precision of each tag: sum_k (R_k - R_{k-1}) P_k over falling thresholds; NaN without positives.

    P_k, R_k: precision and recall of the examples with scores of at least the k-th distinct score.
    """
    return _by_known_tag(_average_precision, scores, tags)


def micro_average_precision(scores: Scores, tags: Tags) -> float:
    """Average precision of all known tags of all examples together; NaN without positives."""
    is_known = tags >= 0
    return _average_precision(scores[is_known], tags[is_known] > 0)


def auroc_by_output(scores: Scores, tags: Tags) -> Float[np.ndarray, " tags"]:
    """Area under the ROC curve of each tag, from ranks; NaN without positives or without negatives."""
    return _by_known_tag(_auroc, scores, tags)


def f1_by_output(scores: Scores, tags: Tags) -> Float[np.ndarray, " tags"]:
    """F1 of each tag, 2 TP / (2 TP + FP + FN); 0 if no example has it and none is predicted to."""
    return _f1(scores, tags, axis=0)


def micro_f1(scores: Scores, tags: Tags) -> float:
    """F1 of all tags of all examples together."""
    return float(_f1(scores, tags, axis=None))


def sample_f1(scores: Scores, tags: Tags) -> float:
    """Mean over examples of the F1 of their tags; 0 for examples without true and predicted tags."""
    return _mean_where(_f1(scores, tags, axis=1), (tags >= 0).any(axis=1))


def exact_match(scores: Scores, tags: Tags) -> float:
    """Fraction of examples whose known tags are all predicted correctly."""
    is_correct = ((scores > 0) == (tags > 0)) | (tags < 0)
    return _mean_where(is_correct.all(axis=1), (tags >= 0).any(axis=1))


def hamming_loss(scores: Scores, tags: Tags) -> float:
    """Fraction of known tags that are predicted incorrectly."""
    return _mean_where((scores > 0) != (tags > 0), tags >= 0)


def _mean_where(values: np.ndarray, where: Any) -> float:
    return float(values[where].mean()) if np.any(where) else float("nan")


def _f1(scores: Scores, tags: Tags, axis: int | None) -> np.ndarray:
    is_predicted, is_true, is_known = scores > 0, tags > 0, tags >= 0
    total = (is_predicted & is_known).sum(axis=axis) + is_true.sum(axis=axis)
    return 2 * (is_predicted & is_true).sum(axis=axis) / np.maximum(total, 1)


def _by_known_tag(measure: Callable[[np.ndarray, np.ndarray], float], scores: Scores, tags: Tags) -> np.ndarray:
    """Apply (scores, whether examples have the tag) -> value to the known examples of each tag."""
    is_known = tags >= 0
    return np.array([measure(s[k], t[k] > 0) for s, t, k in zip(scores.T, tags.T, is_known.T, strict=True)])


def _average_precision(scores: np.ndarray, is_true: np.ndarray) -> float:
    if not is_true.any():
        return np.nan
    order = np.argsort(-scores, kind="stable")
    found = np.cumsum(is_true[order])
    last = np.flatnonzero(np.append(np.diff(scores[order]) != 0, True))  # of equal scores
    return float(np.sum(np.diff(found[last], prepend=0) * found[last] / (last + 1)) / found[-1])


def _auroc(scores: np.ndarray, is_true: np.ndarray) -> float:
    positive = int(is_true.sum())
    if positive in (0, len(scores)):
        return np.nan
    wins = scipy.stats.rankdata(scores)[is_true].sum() - positive * (positive + 1) / 2
    return float(wins / (positive * (len(scores) - positive)))


# ---- of ranks --------------------------------------------------------------------------------------------------------
def rank_mae(logits: Float[np.ndarray, "examples levels"], ranks: Int[np.ndarray, " examples"]) -> float:
    """Mean absolute difference of predicted and true ranks."""
    return float(np.abs((logits > 0).sum(axis=1) - ranks).mean())


def quadratic_kappa(logits: Float[np.ndarray, "examples levels"], ranks: Int[np.ndarray, " examples"]) -> float:
    """Cohen's kappa with quadratic weights: 1 - mean (p_i - y_i)^2 / mean (p_i - y_j)^2, i and j over all examples.

    NaN if all predicted and true ranks are equal.
    """
    predicted, ranks = (logits > 0).sum(axis=1), ranks.astype(np.int64)
    chance = predicted.var() + ranks.var() + (predicted.mean() - ranks.mean()) ** 2
    return float(1 - np.square(predicted - ranks).mean() / chance) if chance > 0 else float("nan")

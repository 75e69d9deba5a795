"""Metrics of predicted classes, and the C-index of survival times."""

import numpy as np
import scipy  # imports its subpackages lazily
from jaxtyping import Float, Int

_NUM_BINS = 15

Logits = Float[np.ndarray, "examples classes"]
Labels = Int[np.ndarray, " examples"]


def balanced_accuracy(logits: Logits, labels: Labels) -> float:
    """Mean recall over the classes that have examples."""
    is_correct = logits.argmax(axis=1) == labels
    num, num_correct = np.bincount(labels), np.bincount(labels[is_correct], minlength=labels.max() + 1)
    return float(np.mean(num_correct[num > 0] / num[num > 0]))


def macro_f1(logits: Logits, labels: Labels) -> float:
    """Mean F1 over the classes that have examples or are predicted.

    F1_c = 2 TP_c / (2 TP_c + FP_c + FN_c)
    """
    predicted, num_classes = logits.argmax(axis=1), logits.shape[1]
    counts = [np.bincount(part, minlength=num_classes) for part in (predicted, labels, labels[predicted == labels])]
    total = counts[0] + counts[1]
    return float(np.mean(2 * counts[2][total > 0] / total[total > 0]))


def auroc(logits: Logits, labels: Labels) -> float:
    """Area under the ROC curve; for more than two classes, the mean over one-vs-rest areas.

        AUROC_c = P(p_c(x) > p_c(x')) + P(p_c(x) = p_c(x')) / 2,   x of class c, x' of another one

    It is computed exactly from the ranks of all examples. They are ranked by the log-odds log p_c - log (1 - p_c),
    which have the same order as p_c but distinguish values that round to the same probability. The mean is over the
    classes that some but not all examples have; NaN if there is no such class.
    """
    num, num_classes = logits.shape
    is_class = labels[:, None] == np.arange(num_classes)
    positive = is_class.sum(axis=0)
    is_defined = (positive > 0) & (positive < num)
    if not is_defined.any():
        return float("nan")
    before = np.logaddexp.accumulate(logits, axis=1)
    after = np.logaddexp.accumulate(logits[:, ::-1], axis=1)[:, ::-1]
    edge = np.full((num, 1), -np.inf)
    others = np.logaddexp(np.hstack([edge, before[:, :-1]]), np.hstack([after[:, 1:], edge]))
    ranks = scipy.stats.rankdata((logits - others)[:, is_defined], axis=0)
    positive, is_class = positive[is_defined], is_class[:, is_defined]
    wins = np.sum(ranks * is_class, axis=0) - positive * (positive + 1) / 2
    return float(np.mean(wins / (positive * (num - positive))))


def calibration_error(logits: Logits, labels: Labels) -> float:
    """Expected calibration error: mean gap between accuracy and confidence, in 15 bins of equal width.

        ECE = sum_b n_b / n |accuracy_b - confidence_b|,   b: examples whose largest probability is in (b/15, (b+1)/15]

    References:
        Guo et al., On Calibration of Modern Neural Networks, ICML 2017.
    """
    confidence = scipy.special.softmax(logits, axis=1).max(axis=1)
    is_correct = logits.argmax(axis=1) == labels
    bins = np.searchsorted(np.linspace(0, 1, _NUM_BINS + 1)[1:-1], confidence)
    gaps = np.bincount(bins, weights=is_correct - confidence, minlength=_NUM_BINS)
    return float(np.abs(gaps).sum() / len(labels))


def c_index(logits: Logits, times: Float[np.ndarray, " examples"]) -> float:
    """Harrell's C-index: the fraction of comparable pairs that the risks order correctly, see `labels.concordance`.

    Unlike the accuracy that every evaluation reports, it always compares all examples.
    """
    risk, time, has_event = logits[:, 1] - logits[:, 0], np.abs(times), times > 0
    num_pairs, wins = 0, 0.0
    for i in np.flatnonzero(has_event):
        is_pair = (time > time[i]) | ((time == time[i]) & ~has_event)
        num_pairs += int(is_pair.sum())
        wins += float(np.sum((risk[i] > risk[is_pair]) + 0.5 * (risk[i] == risk[is_pair])))
    return wins / num_pairs if num_pairs else float("nan")

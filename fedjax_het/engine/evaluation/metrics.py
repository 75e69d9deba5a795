"""Prediction metrics: metrics that depend jointly on all examples of a client or a held-out set.

A run computes only the requested metrics. They are computed on the host, in float64, from the prediction for each
example, so they do not depend on batches, layout or padding.
"""

from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

import numpy as np
import scipy  # imports its subpackages lazily
from jaxtyping import Float, Int

from fedjax_het.engine.evaluation.scoring import HeldOut
from fedjax_het.errors import InputError, nearest
from fedjax_het.labels import are_of_sequences, are_times
from fedjax_het.types import HostArray, Rows

_NUM_BINS = 15

Logits = Float[np.ndarray, "examples classes"]
Labels = Int[np.ndarray, " examples"]
Masks = Int[np.ndarray, "examples *pixels"]


Kind = Literal["classes", "masks", "times"]


class PredictionMetric(NamedTuple):
    """A metric that can be requested by name.

    Attributes:
        title: The name in tables.
        measure: (logits [examples, classes], labels [examples]) or, for masks, (predicted classes, true classes, both
            [examples, *pixels]) of at least one example -> the value, NaN where it is not defined.
        kind: The kind of labels: "classes", "masks", or "times" (survival times).
        is_larger_better: Whether larger values are better.
        is_fraction: Whether values are in 0..1; otherwise they are in pixels.
    """

    title: str
    measure: Callable[[np.ndarray, np.ndarray], float]
    kind: Kind = "classes"
    is_larger_better: bool = True
    is_fraction: bool = True


# ---- of classes ------------------------------------------------------------------------------------------------------
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


# ---- of survival times -----------------------------------------------------------------------------------------------
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


# ---- of masks --------------------------------------------------------------------------------------------------------
def hausdorff(predicted: Masks, truth: Masks) -> float:
    """Hausdorff distance in pixels: as `surface_distance`, with the maximum over the boundary pixels of a class."""
    return _mean_over_images(predicted, truth, lambda distances: distances.max())


def surface_distance(predicted: Masks, truth: Masks) -> float:
    """Average symmetric surface distance in pixels: from each boundary pixel of one mask to the nearest of the other.

    The boundary of a class consists of its pixels next to another class or at the image border. The mean is over the
    pixels of both boundaries, then over the true or predicted classes of the image except 0, the background, then over
    images; images without such classes are skipped. If a class is only true or only predicted, its distance is the
    image diagonal. NaN if all images are skipped.
    """
    return _mean_over_images(predicted, truth, lambda distances: distances.mean())


def _mean_over_images(predicted: Masks, truth: Masks, summarize: Callable[[np.ndarray], float]) -> float:
    values = []
    for prediction, true_mask in zip(predicted, truth, strict=True):
        classes = np.setdiff1d(np.union1d(prediction, true_mask), [0])
        if len(classes):
            values.append(np.mean([summarize(_boundary_distances(prediction == c, true_mask == c)) for c in classes]))
    return float(np.mean(values)) if values else float("nan")


def _boundary_distances(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """The distances from the boundary pixels of each mask to the other's boundary."""
    if not (first.any() and second.any()):
        return np.array([np.linalg.norm(np.array(first.shape) - 1)])
    boundaries = [mask & ~scipy.ndimage.binary_erosion(mask) for mask in (first, second)]
    to_first, to_second = (np.asarray(scipy.ndimage.distance_transform_edt(~boundary)) for boundary in boundaries)
    return np.concatenate([to_second[boundaries[0]], to_first[boundaries[1]]])


METRICS: dict[str, PredictionMetric] = {
    "balanced_accuracy": PredictionMetric("balanced accuracy", balanced_accuracy),
    "macro_f1": PredictionMetric("macro F1", macro_f1),
    "auroc": PredictionMetric("AUROC", auroc),
    "calibration_error": PredictionMetric("expected calibration error", calibration_error, is_larger_better=False),
    "hausdorff": PredictionMetric(
        "Hausdorff distance", hausdorff, kind="masks", is_larger_better=False, is_fraction=False
    ),
    "c_index": PredictionMetric("C-index", c_index, kind="times"),
    "surface_distance": PredictionMetric(
        "average surface distance", surface_distance, kind="masks", is_larger_better=False, is_fraction=False
    ),
}
"""The metrics that can be requested, besides loss, accuracy, and mask overlaps."""


def check_metrics(names: Sequence[str], labels: HostArray) -> tuple[str, ...]:
    """Return the names without duplicates.

    Args:
        names: Metric names.
        labels: The labels of the data set.

    Raises:
        InputError: A name is unknown, or a metric does not support the labels.
    """
    kind = "sequences" if are_of_sequences(labels) else "classes" if labels.ndim == 1 else "masks"
    kind = "times" if are_times(labels) else kind
    for name in names:
        if name not in METRICS:
            raise InputError(f"metrics: there is no metric '{name}'. {nearest(name, METRICS)}")
        if METRICS[name].kind != kind:
            fitting = ", ".join(fitting_name for fitting_name, metric in METRICS.items() if metric.kind == kind)
            raise InputError(
                f"metrics: the labels are {kind}, and '{name}' is a metric of {METRICS[name].kind}. "
                + (f"Choose among {fitting}." if fitting else "Leave it out.")
            )
    return tuple(dict.fromkeys(names))


# ---- of many clients and held-out sets -------------------------------------------------------------------------------
def measure_segments(
    names: Sequence[str], labels: HostArray, held: HeldOut, num_segments: int, predictions: Sequence[HostArray]
) -> dict[str, np.ndarray]:
    """Evaluate a model on every segment: all examples of a client, or a held-out set.

    Args:
        names: Metric names.
        labels: The labels of all examples of the federation.
        held: The batches of held-out examples.
        num_segments: The number of segments.
        predictions: For each entry of `held`, [runs, steps, batches, size, ...], see `scoring.add_batches`.

    Returns:
        {name: [runs, segments]}, NaN for segments without examples.
    """
    positions, segments, predicted = [], [], []
    for batches, values in zip(held, predictions, strict=True):
        is_example = np.arange(batches.index.shape[-1]) < np.asarray(batches.count)[..., None]
        positions.append(np.asarray(batches.index)[is_example])
        segments.append(np.broadcast_to(np.asarray(batches.segment)[..., None], is_example.shape)[is_example])
        predicted.append(np.asarray(values)[:, is_example])
    order = np.argsort(np.concatenate(segments), kind="stable")
    counts = np.bincount(np.concatenate(segments), minlength=num_segments)[:num_segments]
    bounds = np.cumsum(counts)[:-1]
    parts = np.split(order, bounds) if num_segments else []
    used_labels = np.asarray(labels[np.concatenate(positions)])
    all_predictions = np.concatenate(predicted, axis=1)
    return _measure_parts(names, [(all_predictions[:, part], used_labels[part]) for part in parts])


def measure_rows(names: Sequence[str], labels: HostArray, rows: Rows, predictions: HostArray) -> dict[str, np.ndarray]:
    """Evaluate each personal model on its rows.

    Args:
        names: Metric names.
        labels: The labels of all examples of the federation.
        rows: One row per client, or a single row for all.
        predictions: [runs, clients, capacity, ...], see `scoring.score_own_models`.

    Returns:
        {name: [runs, clients]}, NaN for clients without examples.
    """
    parts = []
    for client in range(predictions.shape[1]):
        index, count = rows.index[client % len(rows.count)], int(rows.count[client % len(rows.count)])
        parts.append((np.asarray(predictions)[:, client, :count], np.asarray(labels[index[:count]])))
    return _measure_parts(names, parts)


def _measure_parts(names: Sequence[str], parts: Sequence[tuple[np.ndarray, np.ndarray]]) -> dict[str, np.ndarray]:
    """Measure (predictions [runs, examples, ...], labels [examples, ...]) of each part: {name: [runs, parts]}."""
    values = {name: [] for name in names}
    for predictions, labels in parts:
        for name in names:
            measure = METRICS[name].measure
            run_predictions = predictions if METRICS[name].kind == "masks" else predictions.astype(np.float64)
            values[name].append([measure(output, labels) if len(labels) else np.nan for output in run_predictions])
    return {name: np.array(metric_values, np.float64).T for name, metric_values in values.items()}

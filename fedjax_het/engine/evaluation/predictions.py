"""Predictions for single examples: confusion matrices, and prediction metrics per client."""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jaxtyping import Int

from fedjax_het.data.federation import Federation
from fedjax_het.engine.evaluation.evaluate import (
    BATCH,
    BY_VERSION,
    Evaluation,
    Metrics,
    Predictions,
    held_out_batches,
    personal_rows,
)
from fedjax_het.engine.evaluation.metrics import Truth, measure_rows, measure_segments
from fedjax_het.engine.evaluation.phase_metrics import PhaseMetrics
from fedjax_het.errors import InputError
from fedjax_het.labels import PADDING, find_kind
from fedjax_het.types import Examples, HostArray


def confusion_matrix(labels: np.ndarray, predicted: np.ndarray, num_classes: int) -> Int[np.ndarray, "class class"]:
    """Count examples (pixels of masks, positions of sequences) by true and predicted class.

    Args:
        labels: True classes [examples, ...]; padding of sequences is ignored.
        predicted: Predicted classes, with the same shape.
        num_classes: The number of classes.

    Returns:
        Counts, int64; rows are true classes, columns predicted classes.

    Raises:
        InputError: The labels are no classes.
    """
    labels, predicted = np.asarray(labels), np.asarray(predicted)
    if not (kind := find_kind(labels)).has_classes and kind.name != "ranks":
        raise InputError(f"confusion matrix: the labels are {kind.title}, not classes.")
    is_counted = labels != PADDING
    cells = labels[is_counted].astype(np.int64) * num_classes + predicted[is_counted]
    return np.bincount(cells, minlength=num_classes**2).reshape(num_classes, num_classes)


def add_metrics(
    evaluation: Evaluation,
    predictions: Predictions | None,
    names: Sequence[str],
    federation: Federation,
    personal_on_test: bool,
    round: int = 0,
) -> Evaluation:
    """Add the requested metrics to an evaluation of all runs, on the host; set undefined C-indices to NaN.

    Args:
        evaluation: The evaluation, NumPy arrays [runs, ...].
        predictions: NumPy arrays [runs, ...], in batches of `BATCH`; None without requested metrics.
        names: The names of the metrics.
        federation: The federation.
        personal_on_test: As in `personal_rows`.
        round: The round whose data were evaluated.
    """
    evaluation = jax.tree.map(
        _mark_undefined, evaluation, is_leaf=lambda part: isinstance(part, (Metrics, PhaseMetrics))
    )
    if evaluation.personal is not None and evaluation.personal.model is not None and federation.client_domains:
        evaluation = evaluation._replace(personal=_compare_groups(evaluation.personal, federation.client_domains))
    if predictions is None:
        return evaluation
    (held, groups), phases = held_out_batches(federation, BATCH), federation.phases
    tables = personal_rows(federation.in_round(round), personal_on_test)
    rows = {} if phases is None else dict.fromkeys(BY_VERSION, phases.rows[phases.number(round)])
    truth = Truth(_all_labels(federation.examples), federation.class_names, federation.units)
    parts = measure_segments(names, truth, held, groups, predictions.held, rows)
    own = {name: outputs for name, outputs in predictions.own.items() if outputs is not None}  # not for `scoring.MODEL`
    parts |= {name: measure_rows(names, truth, tables[name], outputs) for name, outputs in own.items()}

    def complete(name: str, metrics: Metrics) -> Metrics:
        is_single, (values, pooled) = np.ndim(metrics.loss) == 1, parts[name]
        requested: dict[str, HostArray] = {m: own[:, 0] if is_single else own for m, own in values.items()}
        has_pooled = bool(pooled) and name != "personal_test"
        return metrics._replace(requested=requested, pooled=dict(pooled) if has_pooled else None)

    unseen = {name: complete(f"unseen/{name}", metrics) for name, metrics in evaluation.unseen.items()}
    scored = {name: part for name, part in evaluation._asdict().items() if isinstance(part, Metrics)}
    measured: dict[str, Any] = {name: complete(name, part) for name, part in scored.items()}
    return evaluation._replace(**measured, unseen=unseen)


def _all_labels(examples: Examples) -> HostArray:
    """The label of every entry of an index table."""
    if examples.concepts is None:
        return examples.labels
    num_concepts = max(len(x) for x in examples.concepts[:6] if x is not None)
    return np.asarray(examples.read_labels(np.arange(num_concepts * len(examples.labels))))


def _mark_undefined(metrics: Metrics | PhaseMetrics) -> Metrics | PhaseMetrics:
    if isinstance(metrics, PhaseMetrics) or metrics.num_defined is None or metrics.accuracy is None:
        return metrics
    is_undefined = (metrics.num_examples > 0) & (metrics.num_defined == 0)
    return metrics._replace(accuracy=np.where(is_undefined, np.nan, metrics.accuracy))


def _compare_groups(personal: Metrics, domains: Sequence[str]) -> Metrics:
    """Add the agreement of the models that clients choose with their domains: 1 if they are the same groups."""
    from sklearn.metrics import adjusted_rand_score  # takes long to import

    models = np.asarray(personal.model)
    values = [adjusted_rand_score(domains, own) for own in models.reshape(-1, models.shape[-1])]
    return personal._replace(rand_index=np.reshape(values, models.shape[:-1]))

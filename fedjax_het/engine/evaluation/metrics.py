"""Prediction metrics: metrics that depend jointly on all examples of a client or a held-out set.

They are computed on the host, in float64, from the prediction for each example, so they do not depend on batches,
layout or padding. Runs with classes compute only the requested ones.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from types import MappingProxyType
from typing import Literal, NamedTuple

import numpy as np

from fedjax_het.data.units import Units
from fedjax_het.engine.evaluation import target_metrics
from fedjax_het.engine.evaluation.boundary_metrics import hausdorff, surface_distance
from fedjax_het.engine.evaluation.class_metrics import auroc, balanced_accuracy, c_index, calibration_error, macro_f1
from fedjax_het.engine.evaluation.scoring import HeldOut
from fedjax_het.engine.evaluation.target_metrics import mean_over_outputs
from fedjax_het.errors import InputError, nearest
from fedjax_het.labels import KindName, find_kind
from fedjax_het.types import HostArray, Rows

Measure = Callable[[np.ndarray, np.ndarray], float | np.ndarray]
Unit = Literal["fraction", "number", "pixels", "ranks"]


class PredictionMetric(NamedTuple):
    """A metric that can be requested by name.

    Attributes:
        title: The name in tables.
        measures: By kind of labels, (outputs [examples, output], labels [examples, ...]) or, for masks, (predicted
            classes, true classes, both [examples, *pixels]) of at least one example -> the value, or an array of one
            value per output; NaN where it is not defined.
        is_larger_better: Whether larger values are better.
        unit: The unit of the values; "fraction" for values in 0..1.
        is_relative: Whether numbers are divided by the error of the naive forecast.
    """

    title: str
    measures: Mapping[KindName, Measure]
    is_larger_better: bool = True
    unit: Unit = "fraction"
    is_relative: bool = False


def _of_errors(title: str, measure: target_metrics.ByOutput, *, is_relative: bool = False) -> PredictionMetric:
    """A metric of numbers that decreases with the errors."""
    return PredictionMetric(title, {"numbers": mean_over_outputs(measure)}, False, "number", is_relative)


_BY_OUTPUT: dict[str, tuple[str, KindName, target_metrics.ByOutput]] = {
    "r2": ("r2", "numbers", target_metrics.r2_by_output),
    "rmse": ("rmse", "numbers", target_metrics.rmse_by_output),
    "mse": ("mse", "numbers", target_metrics.mse_by_output),
    "mae": ("mae", "numbers", target_metrics.mae_by_output),
    "average_precision": ("mean_average_precision", "tags", target_metrics.average_precision_by_output),
    "auroc": ("auroc", "tags", target_metrics.auroc_by_output),
    "f1": ("macro_f1", "tags", target_metrics.f1_by_output),
}
"""Metrics with one value per target or tag: the metric that is their mean, the kind of labels, and the function."""
_ENDING = "_by_output"
_MEANS: dict[str, PredictionMetric] = {
    "balanced_accuracy": PredictionMetric("balanced accuracy", {"classes": balanced_accuracy}),
    "macro_f1": PredictionMetric(
        "macro F1", {"classes": macro_f1, "tags": mean_over_outputs(target_metrics.f1_by_output)}
    ),
    "auroc": PredictionMetric("AUROC", {"classes": auroc, "tags": mean_over_outputs(target_metrics.auroc_by_output)}),
    "calibration_error": PredictionMetric("expected calibration error", {"classes": calibration_error}, False),
    "hausdorff": PredictionMetric("Hausdorff distance", {"masks": hausdorff}, False, "pixels"),
    "c_index": PredictionMetric("C-index", {"times": c_index}),
    "surface_distance": PredictionMetric("average surface distance", {"masks": surface_distance}, False, "pixels"),
    "r2": PredictionMetric("R²", {"numbers": mean_over_outputs(target_metrics.r2_by_output)}, unit="number"),
    "rmse": _of_errors("root mean squared error", target_metrics.rmse_by_output),
    "mse": _of_errors("mean squared error", target_metrics.mse_by_output),
    "mae": _of_errors("mean absolute error", target_metrics.mae_by_output),
    "smape": _of_errors("symmetric mean absolute percentage error", target_metrics.smape_by_output),
    "mase": _of_errors("mean absolute scaled error", target_metrics.mae_by_output, is_relative=True),
    "mean_average_precision": PredictionMetric(
        "mean average precision", {"tags": mean_over_outputs(target_metrics.average_precision_by_output)}
    ),
    "micro_average_precision": PredictionMetric(
        "micro average precision", {"tags": target_metrics.micro_average_precision}
    ),
    "micro_f1": PredictionMetric("micro F1", {"tags": target_metrics.micro_f1}),
    "sample_f1": PredictionMetric("F1 per example", {"tags": target_metrics.sample_f1}),
    "exact_match": PredictionMetric("exact matches", {"tags": target_metrics.exact_match}),
    "hamming_loss": PredictionMetric("Hamming loss", {"tags": target_metrics.hamming_loss}, False),
    "quadratic_kappa": PredictionMetric("quadratic kappa", {"ranks": target_metrics.quadratic_kappa}, unit="number"),
    "rank_mae": PredictionMetric("mean absolute error", {"ranks": target_metrics.rank_mae}, False, "ranks"),
}
METRICS = _MEANS | {
    f"{name}{_ENDING}": _MEANS[mean]._replace(
        title=f"{_MEANS[mean].title} of each {kind.removesuffix('s')}", measures={kind: measure}
    )
    for name, (mean, kind, measure) in _BY_OUTPUT.items()
}
"""The metrics that can be requested, besides loss, accuracy, and mask overlaps."""


def find_metric(figure: str) -> PredictionMetric | None:
    """The metric of a figure without its group and statistic, "mse" or "mse[target]"; None if it is none of METRICS."""
    name, bracket, _ = figure.partition("[")
    return METRICS.get(f"{name}{_ENDING}" if bracket else name)


def check_metrics(names: Sequence[str], labels: HostArray, units: Units | None = None) -> tuple[str, ...]:
    """The metrics that evaluations compute: by default those of the kind of labels, otherwise its main score and these.

    Args:
        names: Metric names.
        labels: The labels of the data set.
        units: Their units, if they are numbers in standardised form.

    Raises:
        InputError: A name is unknown, or a metric does not support the labels.
    """
    kind = find_kind(labels)
    for name in names:
        if name not in METRICS:
            raise InputError(f"metrics: there is no metric '{name}'. {nearest(name, METRICS)}")
        if kind.name not in METRICS[name].measures:
            fitting = ", ".join(other for other, metric in METRICS.items() if kind.name in metric.measures)
            raise InputError(
                f"metrics: the labels are {kind.name}, and '{name}' is a metric of "
                f"{' and '.join(METRICS[name].measures)}. "
                + (f"Choose among {fitting}." if fitting else "Leave it out.")
            )
        if METRICS[name].is_relative and (units is None or units.naive is None):
            raise InputError(
                f"metrics: '{name}' needs the errors of the naive forecast of a time series. Leave it out, or read the "
                "data with the source 'series'."
            )
    scores = [kind.score] if kind.score in METRICS else []
    return tuple(dict.fromkeys([*scores, *names] if names else kind.metrics))


# ---- of many clients and held-out sets -------------------------------------------------------------------------------
class Measurement(NamedTuple):
    """The metrics of a group of clients or of a held-out set: {metric: [runs, clients]}, and of all clients together:
    {metric: [runs]}, {} for classes."""

    values: dict[str, np.ndarray]
    pooled: dict[str, np.ndarray]


class Truth(NamedTuple):
    """The labels of all examples of a federation, with the names of the outputs and the units of numbers."""

    labels: HostArray
    names: Sequence[str] = ()
    units: Units | None = None


_Part = tuple[np.ndarray, np.ndarray]
"""(predictions [runs, examples, ...], positions of the examples)."""


def measure_segments(
    names: Sequence[str],
    truth: Truth,
    held: HeldOut,
    groups: Sequence[tuple[str, int]],
    predictions: Sequence[HostArray],
    rows: Mapping[str, np.ndarray] = MappingProxyType({}),
) -> dict[str, Measurement]:
    """Evaluate a model on every group of segments: all clients, or a held-out set.

    Args:
        names: Metric names.
        truth: The labels.
        held: The batches of held-out examples.
        groups: The groups of segments in order, with their numbers of segments.
        predictions: For each entry of `held`, [runs, steps, batches, size, ...], see `scoring.add_batches`.
        rows: The segments of a group to measure, in this order; others are measured completely.

    Returns:
        {group: its metrics}, NaN for segments without examples.
    """
    positions, segments, predicted = [], [], []
    for batches, values in zip(held, predictions, strict=True):
        is_example = np.arange(batches.index.shape[-1]) < np.asarray(batches.count)[..., None]
        positions.append(np.asarray(batches.index)[is_example])
        segments.append(np.broadcast_to(np.asarray(batches.segment)[..., None], is_example.shape)[is_example])
        predicted.append(np.asarray(values)[:, is_example])
    order = np.argsort(np.concatenate(segments), kind="stable")
    bounds = np.cumsum([0] + [size for _, size in groups])
    counts = np.bincount(np.concatenate(segments), minlength=bounds[-1])[: bounds[-1]]
    parts = np.split(order, np.cumsum(counts)[:-1])
    all_predictions, all_positions = np.concatenate(predicted, axis=1), np.concatenate(positions)
    tables = [(all_predictions[:, part], all_positions[part]) for part in parts]
    members = {name: np.arange(first, end) for (name, _), (first, end) in zip(groups, pairwise(bounds), strict=True)}
    members |= {name: members[name][chosen] for name, chosen in rows.items() if name in members}
    return {name: _measure_parts(names, truth, [tables[i] for i in own]) for name, own in members.items()}


def measure_rows(names: Sequence[str], truth: Truth, rows: Rows, predictions: HostArray) -> Measurement:
    """Evaluate each personal model on its rows.

    Args:
        names: Metric names.
        truth: The labels.
        rows: One row per client, or a single row for all.
        predictions: [runs, clients, capacity, ...], see `scoring.score_own_models`.

    Returns:
        The metrics, NaN for clients without examples.
    """
    parts = []
    for client in range(predictions.shape[1]):
        index, count = rows.index[client % len(rows.count)], int(rows.count[client % len(rows.count)])
        parts.append((np.asarray(predictions)[:, client, :count], np.asarray(index)[:count]))
    return _measure_parts(names, truth, parts)


def _measure_parts(names: Sequence[str], truth: Truth, parts: Sequence[_Part]) -> Measurement:
    measured = [_measure(names, truth, *part) for part in parts]
    values = {name: np.stack([part[name] for part in measured], axis=1) for name in measured[0]} if measured else {}
    if find_kind(truth.labels).has_classes or len(parts) < 2:
        return Measurement(values, {})
    predictions, positions = zip(*parts, strict=True)
    whole = np.concatenate(predictions, axis=1), np.concatenate(positions)
    return Measurement(values, _measure(names, truth, *whole))


def _measure(
    names: Sequence[str], truth: Truth, predictions: np.ndarray, positions: np.ndarray
) -> dict[str, np.ndarray]:
    """{figure: [runs]} of examples; metrics by output have a figure for each, "mse[target]"."""
    labels, units = np.asarray(truth.labels[positions]), truth.units
    kind = find_kind(labels).name
    predictions = predictions if kind == "masks" else predictions.astype(np.float64)
    if units is not None:
        predictions, labels = (units.restore(values, positions) for values in (predictions, labels))
    outputs = [re.sub(r"[^\w.-]+", "_", name) for name in truth.names]
    figures = {}
    for name in names:
        metric, own_labels, own_predictions = METRICS[name], labels, predictions
        if metric.is_relative and units is not None:
            own_labels, own_predictions = _relate(units, positions, labels, predictions)
        is_by_output, measure = name.endswith(_ENDING), metric.measures[kind]
        undefined = np.full(len(outputs), np.nan) if is_by_output else np.nan
        values = np.array([measure(p, own_labels) if len(own_labels) else undefined for p in own_predictions])
        own_names = [f"{name.removesuffix(_ENDING)}[{output}]" for output in outputs] if is_by_output else [name]
        figures |= dict(zip(own_names, values.reshape(len(values), -1).T, strict=True))
    return figures


def _relate(
    units: Units, positions: np.ndarray, labels: np.ndarray, predictions: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Numbers divided by the error of the naive forecast of their series, without series where it has none."""
    assert units.naive is not None
    errors = units.naive[units.group[positions % len(units.group)]]
    is_used = errors > 0
    return labels[is_used] / errors[is_used, None], predictions[:, is_used] / errors[is_used, None]

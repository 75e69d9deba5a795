"""Statistics of metrics over clients."""

import numpy as np

from fedjax_het.engine.evaluation.evaluate import Evaluation, Metrics

_BY_CLIENT = ("clients", "personal", "personal_test", "personal_valid", "newcomers", "valid")


def summarize_clients(metrics: Metrics) -> dict[str, np.ndarray]:
    """Summarize metrics over the clients that have examples.

    Args:
        metrics: Metrics whose last axis is the clients.

    Returns:
        {name: array of the other axes (seeds)}, NaN where no client has examples. accuracy_mean: mean over clients;
        accuracy_weighted: mean over examples; accuracy_std: population standard deviation over clients;
        accuracy_worst10: mean over the worst tenth of the clients (at least one); accuracy_min, accuracy_max;
        accuracy_gini: half the mean difference of two clients divided by the mean, 0 if all are equal; the same of each
        overlap of masks; loss_mean.
    """
    count, numbers = np.asarray(metrics.num_examples, np.float64), {}
    for name, values in _scores(metrics).items():
        numbers |= {f"{name}_{key}": value for key, value in _statistics_over_clients(values, count).items()}
    return numbers | {"loss_mean": _statistics_over_clients(np.asarray(metrics.loss, np.float64), count)["mean"]}


def _scores(metrics: Metrics) -> dict[str, np.ndarray]:
    """The metrics of which larger values are better."""
    scores = {"accuracy": metrics.accuracy} | (metrics.overlap or {})
    return {name: np.asarray(values, np.float64) for name, values in scores.items()}


def _statistics_over_clients(values: np.ndarray, count: np.ndarray) -> dict[str, np.ndarray]:
    has_examples = count > 0
    values = np.where(has_examples, values, np.nan)
    num = has_examples.sum(axis=-1)
    ranked = np.sort(values, axis=-1)  # NaN, the clients without examples, last
    num_worst = np.ceil(num / 10)[..., None]
    positions = 2 * np.arange(1, ranked.shape[-1] + 1) - num[..., None] - 1
    apart, total = _sum_where(positions * ranked, ~np.isnan(ranked)), _sum_where(values, has_examples)
    worst = np.where(np.arange(ranked.shape[-1]) < num_worst, ranked, 0).sum(axis=-1)
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = total / num
        return {
            "mean": mean,
            "weighted": _sum_where(values * count, has_examples) / count.sum(axis=-1),
            "std": np.sqrt(_sum_where((values - mean[..., None]) ** 2, has_examples) / num),
            "worst10": worst / num_worst[..., 0],
            "min": ranked[..., 0],
            "gini": np.where(total > 0, apart / (num * np.where(total > 0, total, 1)), np.where(num > 0, 0.0, np.nan)),
            "max": np.where(num > 0, np.where(has_examples, values, -np.inf).max(axis=-1), np.nan),
        }


def flatten_evaluation(evaluation: Evaluation) -> dict[str, np.ndarray]:
    """Flatten an evaluation into named numbers: "test/accuracy", "clients/accuracy_mean", "unseen/sketch/loss", ..."""
    singles = {"test": evaluation.test} | {f"unseen/{name}": part for name, part in evaluation.unseen.items()}
    groups = {name: getattr(evaluation, name) for name in _BY_CLIENT}
    numbers = {}
    for name, part in singles.items():
        if part is not None:
            scores = {"loss": np.asarray(part.loss)} | _scores(part)
            numbers |= {f"{name}/{key}": value for key, value in scores.items()}
    for name, part in groups.items():
        if part is not None and np.any(np.asarray(part.num_examples) > 0):
            numbers |= {f"{name}/{key}": value for key, value in summarize_clients(part).items()}
    return numbers


def _sum_where(values: np.ndarray, where: np.ndarray) -> np.ndarray:
    return np.where(where, values, 0).sum(axis=-1)

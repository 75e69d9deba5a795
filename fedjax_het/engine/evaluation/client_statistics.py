"""Statistics of metrics over clients."""

from collections.abc import Iterable, Sequence

import numpy as np

from fedjax_het.engine.evaluation.evaluate import Evaluation, Metrics
from fedjax_het.engine.evaluation.metrics import find_metric
from fedjax_het.engine.evaluation.phase_metrics import flatten_phases
from fedjax_het.labels import KINDS

_STATISTICS = ("mean", "weighted", "std", "worst10", "min", "jain", "gini", "max", "worst", "pooled")
MAIN_SCORES = (*(kind.score for kind in KINDS.values() if kind.score != "accuracy"), "accuracy")
"""The names of main scores, each before those that are less informative for the same labels."""
_BY_CLIENT = ("clients", "personal", "personal_test", "personal_valid", "newcomers", "valid")


def summarize_clients(metrics: Metrics) -> dict[str, np.ndarray]:
    """Summarize metrics over the clients with examples.

    Args:
        metrics: Metrics whose last axis is clients.

    Returns:
        {name: array of the other axes (seeds)}, NaN if no client has examples. accuracy_mean: mean over clients;
        accuracy_weighted: mean over examples; accuracy_std: population standard deviation over clients;
        accuracy_worst10: mean over the worst tenth of clients (at least one); accuracy_min, accuracy_max;
        accuracy_jain, accuracy_gini; see `compute_statistics`. The same for each mask overlap and each requested
        metric, over the clients for which it is defined; loss_mean; for tokens, perplexity_mean; with several models
        of the server and one domain per client, rand_index, the adjusted Rand index of the models and the domains.
    """
    count, numbers = np.asarray(metrics.num_examples, np.float64), {}
    for name, values in _scores(metrics).items():
        defined_count = np.where(np.isnan(values), 0, count)  # undefined scores are ignored, NaN losses are not
        statistics = compute_statistics(values, defined_count, is_larger_better=is_larger_better(name))
        numbers |= {f"{name}_{key}": value for key, value in statistics.items()}
    if metrics.rand_index is not None:
        numbers["rand_index"] = np.asarray(metrics.rand_index)
    losses = {"loss": np.asarray(metrics.loss, np.float64)} | _perplexity(metrics)
    return numbers | {f"{name}_mean": compute_statistics(x, count)["mean"] for name, x in losses.items()}


def summarize_domains(domains: Sequence[Metrics]) -> dict[str, np.ndarray]:
    """Summarize metrics over domains: mean, population standard deviation and worst of each score, and mean loss.

    Domains for which a score is undefined are skipped.

    Returns:
        {"accuracy_mean", "accuracy_std", "accuracy_worst", ..., "loss_mean": array of the axes of the metrics (seeds)}.
    """
    numbers = {}
    for name in _scores(domains[0]):
        values = np.stack([_scores(metrics)[name] for metrics in domains], axis=-1)
        statistics = compute_statistics(values, (~np.isnan(values)).astype(float))
        names = {"mean": "mean", "std": "std", "worst": "min" if is_larger_better(name) else "max"}
        numbers |= {f"{name}_{key}": statistics[source] for key, source in names.items()}
    losses = [{"loss": np.asarray(domain.loss, np.float64)} | _perplexity(domain) for domain in domains]
    return numbers | {f"{name}_mean": np.mean([values[name] for values in losses], axis=0) for name in losses[0]}


def is_larger_better(figure: str) -> bool:
    """Whether larger values of a score or its statistic are better: "accuracy", but not "valid/accuracy_std"."""
    score, _, statistic = figure.rpartition("/")[2].rpartition("_")
    if statistic not in _STATISTICS:
        score, statistic = figure.rpartition("/")[2], ""
    metric = find_metric(score)
    is_score = score not in ("loss", "perplexity") and (metric is None or metric.is_larger_better)
    return is_score and statistic not in ("std", "gini")


def main_score(figures: Iterable[str]) -> str:
    """The main score of a run, by the names of its figures: "accuracy", or the score of its kind of labels, such as
    "dice" for masks, whose accuracy depends on the size of the background; "accuracy" if there is none."""
    names = {name.rpartition("/")[2].removesuffix("_mean") for name in figures}
    return next((score for score in MAIN_SCORES if score in names), "accuracy")


def _scores(metrics: Metrics) -> dict[str, np.ndarray]:
    """All metrics except the loss."""
    accuracy = {} if metrics.accuracy is None else {"accuracy": metrics.accuracy}
    scores = accuracy | (metrics.overlap or {}) | (metrics.requested or {})
    return {name: np.asarray(values, np.float64) for name, values in scores.items()}


def _perplexity(metrics: Metrics) -> dict[str, np.ndarray]:
    """{"perplexity": exp(loss)} for tokens, {} for other inputs."""
    if metrics.token_loss is None:
        return {}
    with np.errstate(over="ignore"):
        return {"perplexity": np.exp(np.asarray(metrics.token_loss, np.float64))}


def compute_statistics(
    values: np.ndarray, count: np.ndarray | None = None, *, is_larger_better: bool = True
) -> dict[str, np.ndarray]:
    """Compute the statistics of a score over clients, all that the package reports.

        std:   sqrt(1/n sum_i (x_i - mean)^2)           worst10:   mean of the ceil(n / 10) worst scores
        jain:  (sum_i x_i)^2 / (n sum_i x_i^2), from 1/n to 1        gini:   sum_ij |x_i - x_j| / (2 n^2 mean), from 0

    If all scores are equal, also all 0, Jain's index is 1 and the Gini coefficient 0.

    Args:
        values: Scores whose last axis is clients.
        count: The clients' numbers of examples; clients with 0 are left out. None: 1 each.
        is_larger_better: Whether the worst scores are the smallest.

    Returns:
        {"mean", "weighted" (by examples), "std", "worst10", "min", "jain", "gini", "max": array of the other axes}, NaN
        without clients.

    References:
        Jain, Chiu and Hawe, A Quantitative Measure of Fairness and Discrimination for Resource Allocation in Shared
        Computer Systems, 1984. Gini, Variabilita e mutabilita, 1912.
    """
    has_examples = np.ones_like(values, bool) if count is None else count > 0
    count = np.ones_like(values) if count is None else count
    values = np.where(has_examples, values, np.nan)
    num = has_examples.sum(axis=-1)
    ranked = np.sort(values, axis=-1)  # clients without examples (NaN) are last
    from_worst = ranked if is_larger_better else -np.sort(-values, axis=-1)
    num_worst = np.ceil(num / 10)[..., None]
    positions = 2 * np.arange(1, ranked.shape[-1] + 1) - num[..., None] - 1
    spread, total = _sum_where(positions * ranked, ~np.isnan(ranked)), _sum_where(values, has_examples)
    squares = _sum_where(values**2, has_examples)
    worst = np.where(np.arange(ranked.shape[-1]) < num_worst, from_worst, 0).sum(axis=-1)
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = total / num
        return {
            "mean": mean,
            "weighted": _sum_where(values * count, has_examples) / count.sum(axis=-1),
            "std": np.sqrt(_sum_where((values - mean[..., None]) ** 2, has_examples) / num),
            "worst10": worst / num_worst[..., 0],
            "min": ranked[..., 0],
            "jain": np.where(squares > 0, total**2 / (num * squares), np.where(num > 0, 1.0, np.nan)),
            "gini": np.where(total > 0, spread / (num * np.where(total > 0, total, 1)), np.where(num > 0, 0.0, np.nan)),
            "max": np.where(num > 0, np.where(has_examples, values, -np.inf).max(axis=-1), np.nan),
        }


def flatten_evaluation(evaluation: Evaluation) -> dict[str, np.ndarray]:
    """Flatten an evaluation into named numbers: "test/accuracy", "clients/accuracy_mean", "unseen/sketch/loss", ...

    Statistics over multiple unseen domains are "domains/accuracy_mean", "domains/accuracy_worst", ...
    """
    singles = {"test": evaluation.test} | {f"unseen/{name}": part for name, part in evaluation.unseen.items()}
    groups = {name: getattr(evaluation, name) for name in _BY_CLIENT}
    numbers = {}
    for name, part in singles.items():
        if part is not None:
            scores = {"loss": np.asarray(part.loss)} | _scores(part) | _perplexity(part)
            numbers |= {f"{name}/{key}": value for key, value in scores.items()}
    for name, part in groups.items():
        if part is not None and np.any(np.asarray(part.num_examples) > 0):
            pooled = {f"{key}_pooled": values for key, values in (part.pooled or {}).items()}
            numbers |= {f"{name}/{key}": value for key, value in (summarize_clients(part) | pooled).items()}
    domains = list(evaluation.unseen.values())
    over_domains = summarize_domains(domains) if len(domains) > 1 else {}
    numbers |= {f"models/{key}": value for key, value in (evaluation.models or {}).items()}
    numbers |= flatten_phases(evaluation.phases) if evaluation.phases else {}
    return numbers | {f"domains/{key}": value for key, value in over_domains.items()}


def _sum_where(values: np.ndarray, where: np.ndarray) -> np.ndarray:
    return np.where(where, values, 0).sum(axis=-1)

"""What an array of clients' metrics says in a few numbers."""

import numpy as np

from fedjax_het.engine.evaluation import Evaluation, Metrics


def summary(metrics: Metrics) -> dict[str, np.ndarray]:
    """Over the clients (last axis) that have examples; other axes (seeds) stay.

    accuracy_mean: every client counts alike; _weighted: every example does; _std: population deviation over clients;
    _worst10: mean of the worst tenth of the clients (at least one); _min, _max; loss_mean. NaN where no client has any.
    """
    loss, accuracy, count = (np.asarray(x, np.float64) for x in metrics)
    has_examples = count > 0
    accuracy = np.where(has_examples, accuracy, np.nan)
    num = has_examples.sum(axis=-1)
    ranked = np.sort(accuracy, axis=-1)  # NaN, the clients without examples, last
    num_worst = np.ceil(num / 10)[..., None]
    worst = np.where(np.arange(ranked.shape[-1]) < num_worst, ranked, 0).sum(axis=-1)
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = _sum(accuracy, has_examples) / num
        return {
            "accuracy_mean": mean,
            "accuracy_weighted": _sum(accuracy * count, has_examples) / count.sum(axis=-1),
            "accuracy_std": np.sqrt(_sum((accuracy - mean[..., None]) ** 2, has_examples) / num),
            "accuracy_worst10": worst / num_worst[..., 0],
            "accuracy_min": ranked[..., 0],
            "accuracy_max": np.where(num > 0, np.where(has_examples, accuracy, -np.inf).max(axis=-1), np.nan),
            "loss_mean": _sum(loss, has_examples) / num,
        }


def flat(evaluation: Evaluation) -> dict[str, np.ndarray]:
    """All of an evaluation as named numbers: "test/accuracy", "clients/accuracy_mean", "unseen/sketch/loss", ..."""
    singles = {"test": evaluation.test} | {f"unseen/{name}": part for name, part in evaluation.unseen.items()}
    groups = {"clients": evaluation.clients, "personal": evaluation.personal, "newcomers": evaluation.newcomers}
    numbers = {}
    for name, part in singles.items():
        if part is not None:
            numbers |= {f"{name}/loss": np.asarray(part.loss), f"{name}/accuracy": np.asarray(part.accuracy)}
    for name, part in groups.items():
        if part is not None and np.any(np.asarray(part.num_examples) > 0):
            numbers |= {f"{name}/{key}": value for key, value in summary(part).items()}
    return numbers


def _sum(values: np.ndarray, where: np.ndarray) -> np.ndarray:
    return np.where(where, values, 0).sum(axis=-1)

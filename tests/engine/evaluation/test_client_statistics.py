"""Summaries of metrics over clients."""

import numpy as np
import pytest

from fedjax_het.engine import compute_statistics, summarize_clients
from fedjax_het.engine.evaluation.client_statistics import summarize_domains
from fedjax_het.engine.evaluation.evaluate import Metrics


def test_the_summary_leaves_out_clients_without_examples():
    metrics = Metrics(np.array([[1.0, 3.0, 0.0]]), np.array([[0.5, 1.0, 0.0]]), np.array([[30.0, 10.0, 0.0]]))
    numbers = {name: float(value[0]) for name, value in summarize_clients(metrics).items()}
    assert numbers == pytest.approx(
        {
            "accuracy_mean": 0.75,
            "accuracy_weighted": 0.625,
            "accuracy_std": 0.25,
            "accuracy_worst10": 0.5,
            "accuracy_min": 0.5,
            "accuracy_jain": 0.9,
            "accuracy_gini": 1 / 6,
            "accuracy_max": 1.0,
            "loss_mean": 2.0,
        }
    )


def test_the_worst_tenth_of_thirty_clients_are_three():
    accuracy = np.linspace(0, 1, 30)[None]
    ones = np.ones_like(accuracy)
    assert summarize_clients(Metrics(ones, accuracy, ones))["accuracy_worst10"][0] == pytest.approx(
        accuracy[0, :3].mean()
    )


def test_gini_is_the_relative_mean_difference_of_two_clients():
    rng = np.random.default_rng(0)
    accuracy, count = rng.random((2, 7)), np.array([[3, 0, 2, 5, 1, 0, 4]] * 2)
    ours = summarize_clients(Metrics(accuracy, accuracy, count))["accuracy_gini"]
    for values, gini in zip(accuracy[:, count[0] > 0], ours, strict=True):
        assert gini == pytest.approx(np.abs(values[:, None] - values).mean() / 2 / values.mean())
    nobody = np.zeros((1, 3))
    assert np.isnan(summarize_clients(Metrics(nobody, nobody, nobody))["accuracy_gini"][0])
    assert summarize_clients(Metrics(nobody, nobody, nobody + 1))["accuracy_gini"][0] == 0


def test_all_statistics_are_those_of_plain_numpy():
    rng = np.random.default_rng(1)
    for values in (rng.random((3, 25)), np.full((3, 4), 0.3), np.zeros((3, 4)), rng.random((3, 1))):
        ours = compute_statistics(values)
        for seed, own in enumerate(values):
            differences = np.abs(own[:, None] - own).mean()
            expected = {
                "mean": own.mean(),
                "weighted": own.mean(),
                "std": own.std(),
                "worst10": np.sort(own)[: int(np.ceil(len(own) / 10))].mean(),
                "min": own.min(),
                "max": own.max(),
                "jain": own.sum() ** 2 / (len(own) * (own**2).sum()) if own.any() else 1.0,
                "gini": differences / (2 * own.mean()) if own.any() else 0.0,
            }
            assert {name: statistic[seed] for name, statistic in ours.items()} == pytest.approx(expected)
    assert compute_statistics(np.array([0.1, 0.9]), is_larger_better=False)["worst10"] == 0.9


def test_clients_and_domains_for_which_a_score_is_not_defined_are_left_out():
    accuracy, ones = np.array([[0.9, np.nan, 0.5]]), np.ones((1, 3))
    numbers = summarize_clients(Metrics(ones, accuracy, ones))
    assert pytest.approx(
        {name: numbers[f"accuracy_{name}"][0] for name in ("mean", "worst10", "max", "gini", "std")}
    ) == {"mean": 0.7, "worst10": 0.5, "max": 0.9, "gini": 1 / 7, "std": 0.2}
    domains = [Metrics(*parts) for parts in zip(ones.T, accuracy.T, ones.T, strict=True)]
    numbers = {name: value[0] for name, value in summarize_domains(domains).items()}
    assert numbers == pytest.approx({"accuracy_mean": 0.7, "accuracy_std": 0.2, "accuracy_worst": 0.5, "loss_mean": 1})

"""Metrics of numbers, tags and ranks: those of scikit-learn on random predictions."""

import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn import metrics as sklearn_metrics

from fedjax_het.engine import METRICS

SIZES = {"seed": st.integers(0, 2**32 - 1), "num": st.integers(2, 40), "num_outputs": st.integers(1, 4)}


def measure(name, kind, predictions, labels):
    return METRICS[name].measures[kind](predictions, labels)


def assert_equal(ours, expected):
    np.testing.assert_allclose(ours, expected, rtol=1e-9, atol=1e-12)


@settings(max_examples=30, deadline=None)
@given(**SIZES, offset=st.sampled_from([0.0, 1e6]), is_constant=st.booleans())
def test_metrics_of_numbers_are_those_of_scikit_learn(seed, num, num_outputs, offset, is_constant):
    rng = np.random.default_rng(seed)
    labels = offset + rng.normal(size=(num, num_outputs)) * (0 if is_constant else 1)
    predictions = labels + rng.normal(size=labels.shape) * rng.integers(0, 2, num_outputs)
    for name, expected in (
        ("mse", sklearn_metrics.mean_squared_error),
        ("rmse", sklearn_metrics.root_mean_squared_error),
        ("mae", sklearn_metrics.mean_absolute_error),
        ("r2", sklearn_metrics.r2_score),
    ):
        single = expected(labels, predictions, multioutput="raw_values")
        assert_equal(measure(f"{name}_by_output", "numbers", predictions, labels), single)
        assert_equal(measure(name, "numbers", predictions, labels), expected(labels, predictions))


@settings(max_examples=30, deadline=None)
@given(**SIZES, rate=st.sampled_from([0.1, 0.5, 0.9]), has_unknown=st.booleans())
def test_metrics_of_tags_are_those_of_scikit_learn_on_known_tags(seed, num, num_outputs, rate, has_unknown):
    rng = np.random.default_rng(seed)
    scores = np.round(rng.normal(size=(num, num_outputs)), 1)  # with ties
    tags = (rng.random(scores.shape) < rate).astype(np.int8)
    tags[rng.random(tags.shape) < (0.3 if has_unknown else 0)] = -1
    tags[0] = 1
    expected = {"average_precision": [], "auroc": [], "f1": []}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for score, tag in zip(scores.T, tags.T, strict=True):
            is_known = tag >= 0
            own = tag[is_known], score[is_known]
            has_both = len(set(own[0])) == 2
            expected["average_precision"].append(sklearn_metrics.average_precision_score(*own))
            expected["auroc"].append(sklearn_metrics.roc_auc_score(*own) if has_both else np.nan)
            expected["f1"].append(sklearn_metrics.f1_score(own[0], own[1] > 0, zero_division=0.0))
        known = tags >= 0
        pairs = tags[known], scores[known]
        single = {
            "mean_average_precision": np.mean(expected["average_precision"]),
            "auroc": np.nanmean(expected["auroc"]),
            "macro_f1": np.mean(expected["f1"]),
            "micro_f1": sklearn_metrics.f1_score(pairs[0], pairs[1] > 0, zero_division=0.0),
            "micro_average_precision": sklearn_metrics.average_precision_score(*pairs),
            "hamming_loss": sklearn_metrics.hamming_loss(pairs[0], pairs[1] > 0),
        }
        if not has_unknown and num_outputs > 1:
            single["sample_f1"] = sklearn_metrics.f1_score(tags, scores > 0, average="samples", zero_division=0.0)
            single["exact_match"] = sklearn_metrics.accuracy_score(tags, scores > 0)
    for name, values in expected.items():
        assert_equal(measure(f"{name}_by_output", "tags", scores, tags), values)
    for name, value in single.items():
        assert_equal(measure(name, "tags", scores, tags), value)


@settings(max_examples=30, deadline=None)
@given(seed=SIZES["seed"], num=SIZES["num"], num_ranks=st.integers(2, 6))
def test_metrics_of_ranks_are_those_of_scikit_learn(seed, num, num_ranks):
    rng = np.random.default_rng(seed)
    logits, ranks = rng.normal(size=(num, num_ranks - 1)), rng.integers(0, num_ranks, num).astype(np.int8)
    predicted = (logits > 0).sum(axis=1)
    assert_equal(measure("rank_mae", "ranks", logits, ranks), sklearn_metrics.mean_absolute_error(ranks, predicted))
    if len({*ranks, *predicted}) > 1:
        kappa = sklearn_metrics.cohen_kappa_score(ranks, predicted, labels=range(num_ranks), weights="quadratic")
        assert_equal(measure("quadratic_kappa", "ranks", logits, ranks), kappa)


def test_undefined_metrics_are_nan_and_left_out_of_means():
    scores, absent = np.array([[1.0, 2.0], [0.0, 1.0]]), np.array([[1, 0], [0, 0]], np.int8)
    assert_equal(measure("average_precision_by_output", "tags", scores, absent), [1, np.nan])
    assert measure("mean_average_precision", "tags", scores, absent) == 1
    assert np.isnan(measure("mean_average_precision", "tags", scores, 0 * absent))
    assert np.isnan(measure("r2", "numbers", np.ones((1, 2)), np.ones((1, 2))))
    assert np.isnan(measure("quadratic_kappa", "ranks", np.ones((3, 2)), np.full(3, 2)))
    assert measure("smape", "numbers", np.zeros((2, 1)), np.zeros((2, 1))) == 0


@pytest.mark.parametrize("name", [name for name, metric in METRICS.items() if metric.measures.keys() & {"numbers"}])
def test_errors_are_better_when_smaller(name):
    worse, labels = np.array([[1.0], [3.0], [2.0]]), np.array([[1.0], [2.0], [3.0]])
    better, worst = (np.mean(measure(name, "numbers", values, labels)) for values in (labels, worse))
    assert (better > worst) == METRICS[name].is_larger_better

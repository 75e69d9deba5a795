"""Statistics of phases: properties that golden numbers do not show."""

import numpy as np

from fedjax_het.engine import PhaseMetrics, continual_statistics, drift_statistics, summarize_phases


def test_a_model_that_keeps_everything_forgets_nothing_and_transfers_its_gain():
    matrix = np.tile([0.9, 0.8, 0.7], (3, 1))
    statistics = continual_statistics(matrix, random_accuracy=0.1)
    np.testing.assert_allclose(statistics["forgetting"], [np.nan, 0, 0], atol=1e-12)
    np.testing.assert_allclose(statistics["forward_transfer"], [np.nan, 0.7, 0.65])
    np.testing.assert_allclose(statistics["average_accuracy"], [0.9, 0.85, 0.8])


def test_statistics_of_a_run_read_the_last_evaluation_of_each_phase():
    accuracy = np.array([[0.5, 0.1], [0.8, 0.2], [0.6, 0.5], [0.4, 0.79]])[None]  # after rounds 1, 2, 3, 5
    starts, present = np.array([0, 2]), np.array([0, 0, 1, 1])
    spread = lambda x: np.broadcast_to(x, (1, 4, *np.shape(x)))  # noqa: E731
    metrics = PhaseMetrics(spread(starts), present[None], np.array([[0, 1, 1, 1]]), spread(starts), accuracy)
    summary = summarize_phases([1, 2, 3, 5], metrics)
    np.testing.assert_allclose(summary["average_accuracy"], [[0.8, 0.595]])
    np.testing.assert_allclose(summary["forgetting"], [[np.nan, 0.4]])
    np.testing.assert_allclose(summary["drop"], [[np.nan, 0.3]])  # of .5 before the last round of phase 0
    np.testing.assert_allclose(summary["recovery"], [[np.nan, 1]])
    assert drift_statistics(np.array([0.9, 0.1, 0.2]), 1)["recovery"] == -1


def test_what_was_not_measured_is_undefined():
    matrix = np.array([[0.9, 0.1], [np.nan, np.nan]])
    statistics = continual_statistics(matrix)
    assert np.isnan([statistics["average_accuracy"][1], statistics["forgetting"][1]]).all()
    assert statistics["average_accuracy"][0] == 0.9

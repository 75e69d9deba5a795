"""Drawings of a run have the lines, labels and images of its figures."""

import matplotlib.pyplot as plt
import numpy as np
import pytest

from fedjax_het.cli.runs import plots
from fedjax_het.cli.runs.figures import Panel, View, learning_curves, partition_heat

TRAIN = {"train/loss": 2.0}


@pytest.fixture(autouse=True)
def close_all():
    yield
    plt.close("all")


def lines(num_seeds, **figures):
    return [
        {"round": round, "seed": seed, **{name: value + seed for name, value in figures.items()}, "seconds": 1.0}
        for round in (5, 10)
        for seed in range(num_seeds)
    ]


def test_curves_are_means_over_seeds_with_a_band_and_a_legend(tmp_path):
    figures = {"test/accuracy": 0.5, "test/loss": 1.0, "clients/accuracy_mean": 0.4, "clients/accuracy_min": 0}
    drawing = plots.draw_view(learning_curves(lines(3, **TRAIN, **figures)))
    accuracy, loss = drawing.axes
    assert [line.get_label() for line in accuracy.get_lines()] == ["test set", "clients"]
    assert [line.get_label() for line in loss.get_lines()] == ["test set", "training"]
    np.testing.assert_allclose(loss.get_lines()[0].get_xydata(), [[5, 2.0], [10, 2.0]])
    assert len(loss.collections) == 2 and len(drawing.legends) == 1
    plots.save(drawing, tmp_path / "curves.png")
    assert (tmp_path / "curves.png").read_bytes()[:4] == b"\x89PNG"


def test_a_single_curve_per_panel_is_named_at_the_axis_and_has_no_band():
    accuracy, loss = plots.draw_view(learning_curves(lines(1, **TRAIN, **{"unseen/art_painting/accuracy": 0.3}))).axes
    assert not loss.collections
    assert accuracy.get_ylabel() == "accuracy (unseen art_painting)" and loss.get_ylabel() == "loss (training)"
    assert accuracy.get_xlabel() == "round"


def test_a_loss_that_was_not_finite_is_a_gap():
    loss_lines = lines(1, **TRAIN)
    loss_lines[0]["train/loss"] = None
    _, loss = plots.draw_view(learning_curves(loss_lines)).axes
    assert np.isnan(loss.get_lines()[0].get_ydata()[0]) and loss.get_lines()[0].get_ydata()[1] == 2.0


@pytest.mark.parametrize(("num_clients", "is_named"), [(4, True), (10, True), (100, False)])
def test_the_partition_plot_labels_clients_only_if_there_is_room(num_clients, is_named):
    counts = np.arange(num_clients * 3).reshape(num_clients, 3)
    clients = [
        {"client": f"client_{i:03d}", "classes": dict(zip("abc", map(int, row), strict=True))}
        for i, row in enumerate(counts)
    ]
    heat = partition_heat(clients, "training examples")
    axis, bar = plots.draw_view(View("", [Panel("", "client", "class", [heat])])).axes
    assert (axis.get_xlabel(), axis.get_ylabel(), bar.get_ylabel()) == ("client", "class", "training examples")
    assert np.array_equal(axis.get_images()[0].get_array(), counts.T)
    assert ("client_001" in [label.get_text() for label in axis.get_xticklabels()]) == is_named
    assert [label.get_text() for label in axis.get_yticklabels()] == ["a", "b", "c"]

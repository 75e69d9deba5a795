"""Pictures: what is drawn and what stands at the axes. How they look is judged by eye."""

import matplotlib.pyplot as plt
import numpy as np
import pytest

from experiments.runs import plots

TRAIN = {"train/loss": 2.0}


@pytest.fixture
def drawn(monkeypatch):
    """The figures that were made, kept from being closed."""
    figures = []
    monkeypatch.setattr(plots.plt, "close", figures.append)
    yield figures
    monkeypatch.undo()
    plt.close("all")


def lines(num_seeds, **figures):
    return [
        {"round": round, "seed": seed, **{name: value + seed for name, value in figures.items()}, "seconds": 1.0}
        for round in (5, 10)
        for seed in range(num_seeds)
    ]


def test_curves_are_means_over_seeds_with_a_band_and_a_legend(tmp_path, drawn):
    figures = {"test/accuracy": 0.5, "test/loss": 1.0, "clients/accuracy_mean": 0.4, "clients/accuracy_min": 0}
    some = lines(3, **TRAIN, **figures)
    plots.draw_curves(some, tmp_path / "curves.png")
    accuracy, loss = drawn[0].axes
    assert [line.get_label() for line in accuracy.get_lines()] == ["test set", "clients, shared model"]
    assert [line.get_label() for line in loss.get_lines()] == ["test set", "training"]
    np.testing.assert_allclose(loss.get_lines()[0].get_xydata(), [[5, 2.0], [10, 2.0]])
    assert len(loss.collections) == 2 and len(drawn[0].legends) == 1
    assert (tmp_path / "curves.png").read_bytes()[:4] == b"\x89PNG"


def test_a_single_curve_needs_no_legend_and_no_band(tmp_path, drawn):
    plots.draw_curves(lines(1, **TRAIN, **{"unseen/art_painting/accuracy": 0.3}), tmp_path / "curves.png")
    accuracy, loss = drawn[0].axes
    assert not drawn[0].legends and not loss.collections
    assert accuracy.get_ylabel() == "accuracy (unseen: art_painting)" and loss.get_ylabel() == "loss (training)"
    assert accuracy.get_xlabel() == "round"


def test_a_loss_that_was_not_finite_is_a_gap(tmp_path, drawn):
    some = lines(1, **TRAIN)
    some[0]["train/loss"] = None
    plots.draw_curves(some, tmp_path / "curves.png")
    assert np.isnan(drawn[0].axes[1].get_lines()[0].get_ydata()[0])


@pytest.mark.parametrize(("num_clients", "is_named"), [(4, True), (10, True), (100, False)])
def test_the_partition_names_its_axes_and_its_clients_where_there_is_room(tmp_path, drawn, num_clients, is_named):
    names = [f"client_{i:03d}" for i in range(num_clients)]
    counts = np.arange(num_clients * 3).reshape(num_clients, 3)
    plots.draw_partition(counts, names, ["a", "b", "c"], tmp_path / "partition.png")
    axis, bar = drawn[0].axes
    assert (axis.get_xlabel(), axis.get_ylabel(), bar.get_ylabel()) == ("client", "class", "training examples")
    assert np.array_equal(axis.get_images()[0].get_array(), counts.T)
    assert ("client_001" in [label.get_text() for label in axis.get_xticklabels()]) == is_named
    assert [label.get_text() for label in axis.get_yticklabels()] == ["a", "b", "c"]

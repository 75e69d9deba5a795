"""Figures and numbers read from the last lines with diagnostics."""

import json

import numpy as np
import pytest

from experiments import figures, measures
from fedjax_het.cli.runs import diagnostics_log
from fedjax_het.cli.runs.results import RunResults
from tests.cli.report import sample_runs

STEPS = np.linspace(-1, 1, 11)
DISTANCE = np.hypot(STEPS[:, None], STEPS)


def write_run(folder, surfaces, is_present=(True, True)):
    """Write the lines of two rounds, the second with these surfaces of clients, and images."""
    (folder / diagnostics_log.FOLDER).mkdir(parents=True)
    counts = {"train": 1, "valid": 0, "test": 1, "classes": {"cat": 1}}
    clients = [{"client": name, "is_newcomer": False, **counts} for name in ("a", "b")]
    (folder / "partition.json").write_text(json.dumps(sample_runs.make_partition(clients)))
    images = np.random.default_rng(0).random((2, 2, 12, 10, 3))
    true = np.zeros((2, 2, 12, 10), np.uint8)
    true[:, :, 3:8, 2:7] = 1
    for round in (0, 9):
        arrays = {"images": images, "true": true, "predicted": np.roll(true, round, axis=2)}
        arrays["is_image"] = np.array([[True, True], [True, False]])
        place = f"{diagnostics_log.FOLDER}/round_{round:05d}_seed_0.npz"
        np.savez(folder / place, **{f"contours/{name}": values for name, values in arrays.items()})
        told = surfaces if round else [np.zeros_like(STEPS[:, None] * STEPS)] * 2
        landscape = {"clients": np.array(told).tolist(), "steps": STEPS.tolist()}
        cohort = {"ids": [1, 0], "is_present": list(is_present)}
        line = {"round": round, "seed": 0, "cohort": cohort, "landscape": landscape, "pictures": place}
        with (folder / diagnostics_log.NAME).open("a") as file:
            file.write(json.dumps(line) + "\n")
    return RunResults(folder)


def test_the_loss_rise_of_a_quadratic_surface_matches_its_formula(tmp_path):
    bowls = write_run(tmp_path / "bowls", [1 + DISTANCE**2, 5 + 3 * DISTANCE**2])
    radius_squared = np.mean((DISTANCE**2)[np.abs(DISTANCE - 0.4) <= 0.1 + 1e-9])
    assert measures.read_loss_rise(0.4)(bowls, "-") == pytest.approx([2 * radius_squared], rel=1e-6)
    assert measures.read_loss_rise(0.8)(bowls, "-")[0] > measures.read_loss_rise(0.4)(bowls, "-")[0]
    assert measures.read_minimum_distance(bowls, "-") == pytest.approx([0.0])


def test_the_minimum_distance_is_over_present_clients(tmp_path):
    moved = np.hypot(STEPS[:, None] - 0.6, STEPS + 0.8)
    assert measures.read_minimum_distance(write_run(tmp_path / "both", [moved, DISTANCE]), "-") == pytest.approx([0.5])
    assert measures.read_minimum_distance(
        write_run(tmp_path / "first", [moved, DISTANCE], (True, False)), "-"
    ) == pytest.approx([1.0])


@pytest.mark.parametrize("draw", [figures.plot_landscapes, figures.plot_segmentations])
def test_a_figure_has_one_row_per_client_or_image_and_one_column_per_method(tmp_path, draw, monkeypatch):
    drawn = {}

    def grid(rows, columns, *arguments, **options):
        drawn["rows"], drawn["columns"] = list(rows), list(columns)
        return real(rows, columns, *arguments, **options)

    real = figures.plots.draw_grid
    monkeypatch.setattr(figures.plots, "draw_grid", grid)
    surfaces = [1 + DISTANCE, 2 + DISTANCE**2]
    runs = {(name, "clients"): write_run(tmp_path / name, surfaces) for name in ("FedAvg", "HarmoFL")}
    figures.plots.save(draw([], runs), tmp_path / "figure.png")
    is_map = draw is figures.plot_landscapes
    assert drawn["rows"] == (["b", "a"] if is_map else ["b", "b", "a"])
    assert drawn["columns"] == ([] if is_map else ["truth"]) + ["FedAvg", "HarmoFL"]
    assert (tmp_path / "figure.png").stat().st_size > 10_000


def test_dice_of_outlines_matches_its_definition():
    true = np.array([[1, 1, 0], [0, 2, 2]])
    assert figures.compute_dice(true, true) == 1
    assert figures.compute_dice(true, np.array([[1, 0, 0], [0, 1, 2]])) == pytest.approx(2 * 2 / 7)
    assert figures.compute_dice(np.zeros((2, 2)), np.zeros((2, 2))) == 1

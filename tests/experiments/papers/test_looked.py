"""Figures and numbers that are made of what diagnostics saw in the last look."""

import json

import numpy as np
import pytest

from experiments.papers import diagnostics, measures
from experiments.runs import diagnostics_log
from experiments.runs.run_directory import RunDirectory

STEPS = np.linspace(-1, 1, 11)
DISTANCE = np.hypot(STEPS[:, None], STEPS)


def run(folder, surfaces, is_present=(True, True)):
    """Two looks, whose second has these surfaces of clients, and pictures."""
    (folder / diagnostics_log.FOLDER).mkdir(parents=True)
    clients = [{"client": name, "is_newcomer": False} for name in ("a", "b")]
    (folder / "partition.json").write_text(json.dumps({"clients": clients}))
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
    return RunDirectory(folder)


def test_the_rise_of_the_loss_is_that_of_a_bowl(tmp_path):
    bowls = run(tmp_path / "bowls", [1 + DISTANCE**2, 5 + 3 * DISTANCE**2])
    radius_squared = np.mean((DISTANCE**2)[np.abs(DISTANCE - 0.4) <= 0.1 + 1e-9])
    assert measures.rise(0.4)(bowls, "-") == pytest.approx([2 * radius_squared], rel=1e-6)
    assert measures.rise(0.8)(bowls, "-")[0] > measures.rise(0.4)(bowls, "-")[0]
    assert measures.offset(bowls, "-") == pytest.approx([0.0])


def test_the_lowest_loss_of_who_was_there_is_found(tmp_path):
    moved = np.hypot(STEPS[:, None] - 0.6, STEPS + 0.8)
    assert measures.offset(run(tmp_path / "both", [moved, DISTANCE]), "-") == pytest.approx([0.5])
    assert measures.offset(run(tmp_path / "first", [moved, DISTANCE], (True, False)), "-") == pytest.approx([1.0])


@pytest.mark.parametrize("draw", [diagnostics.landscapes, diagnostics.segmentations])
def test_a_figure_has_a_row_a_client_or_image_and_a_column_a_method(tmp_path, draw, monkeypatch):
    drawn = {}

    def grid(rows, columns, *arguments, **options):
        drawn["rows"], drawn["columns"] = list(rows), list(columns)
        return real(rows, columns, *arguments, **options)

    real = diagnostics.images.draw_grid
    monkeypatch.setattr(diagnostics.images, "draw_grid", grid)
    surfaces = [1 + DISTANCE, 2 + DISTANCE**2]
    runs = {(name, "clients"): run(tmp_path / name, surfaces) for name in ("FedAvg", "HarmoFL")}
    draw([], runs, tmp_path / "figure.png")
    is_map = draw is diagnostics.landscapes
    assert drawn["rows"] == (["b", "a"] if is_map else ["b", "b", "a"])
    assert drawn["columns"] == ([] if is_map else ["truth"]) + ["FedAvg", "HarmoFL"]
    assert (tmp_path / "figure.png").stat().st_size > 10_000


def test_overlap_of_outlines():
    true = np.array([[1, 1, 0], [0, 2, 2]])
    assert diagnostics._dice(true, true) == 1
    assert diagnostics._dice(true, np.array([[1, 0, 0], [0, 1, 2]])) == pytest.approx(2 * 2 / 7)
    assert diagnostics._dice(np.zeros((2, 2)), np.zeros((2, 2))) == 1

"""Recovery from a drift: the best rates are trained, once, and written and drawn."""

import csv

import numpy as np
import pytest

import fedjax_het as fh
from experiments.drift_recovery import DRIFTS, METHODS, NUM_SEEDS, ROUNDS, START, main


@pytest.mark.extended
def test_the_best_rates_are_trained_once_and_their_recovery_is_written_and_drawn(tmp_path, monkeypatch):
    trained = []

    def simulate(algorithm, rule, path, **seeds):
        trained.append(seeds)
        if isinstance(algorithm, fh.Sweep):
            return 100 - 100 * np.abs(np.array(algorithm.values["learning_rate"])[:, None] - [0.1] * ROUNDS)
        accuracy = np.full((NUM_SEEDS, ROUNDS), 80.0)
        accuracy[:, START - 1 : START + 2] = 10  # for three rounds
        accuracy[0, START - 1 :] = 10
        return accuracy

    monkeypatch.setattr("experiments.drift_recovery.simulate", simulate)
    (tmp_path / "data.npz").touch()
    flags = [f"--data={tmp_path / 'data.npz'}", f"--workdir={tmp_path / 'runs'}", f"--out={tmp_path}"]
    assert main(flags) == main(flags) == 0
    assert len(trained) == 2 * len(DRIFTS) * len(METHODS)
    rows = list(csv.DictReader((tmp_path / "drift_recovery.csv").open()))
    assert [(row["drift"], row["method"]) for row in rows] == [(d, m) for d in DRIFTS for m in METHODS]
    assert {row["learning rate"] for row in rows} == {"0.1"}
    assert rows[0]["rounds to 70 %"] == rows[0]["rounds to 95 % of the best"] == "-1;3;3;3;3"
    assert rows[0]["before, %"] == ";".join(["80"] * NUM_SEEDS)
    picture = (tmp_path / "drift_recovery.svg").read_text()
    assert all(name in picture for name in (*DRIFTS, *METHODS))

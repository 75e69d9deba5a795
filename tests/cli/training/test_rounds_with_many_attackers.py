"""The share of rounds with more attackers than the robust rule's num_attackers."""

import json

import numpy as np
import pytest

from fedjax_het import engine
from fedjax_het.attackers import choose_attackers
from fedjax_het.cli import train

pytestmark = pytest.mark.extended

FILE = """
def get_config():
    return {
        "algorithm": {"name": "fedavg", "weighting": "uniform"},
        "model": {"name": "mlp", "hidden": (4,)},
        "data": {"name": "digits", "num_clients": 10, "partition": {"name": "iid"}},
        "uplink": ({"name": "attack_sign_flip", "fraction": 0.4}, {"name": "attack_gaussian", "clients": (0, 1)}),
        "aggregator": {"name": "coordinate_median", "num_attackers": 1},
        "rounds": 6, "cohort_size": 3, "evaluate_every": 3, "num_seeds": 2, "layout": "vmapped",
    }
"""


@pytest.mark.slow
def test_the_share_is_that_of_the_cohorts_that_were_trained(tmp_path, monkeypatch):
    cohorts, advance = [], engine.Simulation.advance

    def record(self, state, num_rounds):
        state, metrics = advance(self, state, num_rounds)
        cohorts.append(np.asarray(metrics.cohort))
        return state, metrics

    monkeypatch.setattr(engine.Simulation, "advance", record)
    (tmp_path / "config.py").write_text(FILE)
    flags = [f"--config={tmp_path / 'config.py'}", f"--workdir={tmp_path / 'run'}"]
    assert train.main(flags) == 0
    attackers = {*choose_attackers(10, {"fraction": 0.4}).tolist(), 0, 1}
    is_exceeded = np.isin(np.concatenate(cohorts, axis=1), list(attackers)).sum(axis=-1) > 1  # [seeds, rounds]
    assert 0 < is_exceeded.mean() < 1
    for line in map(json.loads, (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()):
        assert line["attackers/too_many"] == is_exceeded[line["seed"], : line["round"]].mean()

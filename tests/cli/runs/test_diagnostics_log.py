"""Diagnostics from the command line."""

import json

import numpy as np
import pytest

from fedjax_het import data
from fedjax_het.cli import train
from fedjax_het.cli.runs import diagnostics_log
from fedjax_het.cli.runs.diagnostics_log import DiagnosticsLog
from fedjax_het.diagnostics import DIAGNOSTICS
from fedjax_het.engine import Simulation
from tests.harness import algorithm, model

pytestmark = pytest.mark.extended

CONFIG = """
def get_config():
    return dict(
        algorithm=dict(name="fedavg", batch_size=20), model=dict(name="mlp", hidden=()),
        data=dict(name="digits", num_clients=3, partition=dict(name="iid")),
        rounds=4, num_seeds=2, evaluate_every=4, checkpoint_every=2, layout="vmapped",
        diagnostics="norms, drift", diagnose_every=2,
    )
"""


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.slow
def test_a_run_writes_its_diagnostics_and_prints_their_cost(tmp_path, capsys):
    (tmp_path / "config.py").write_text(CONFIG)
    arguments = [f"--config={tmp_path / 'config.py'}", f"--workdir={tmp_path / 'run'}"]
    assert train.main(arguments) == 0
    said = capsys.readouterr().out
    assert "diagnostics: 2 snapshots of " in said and str(tmp_path / "run" / "diagnostics.jsonl") in said
    found = lines(tmp_path / "run" / "diagnostics.jsonl")
    assert [(line["round"], line["seed"]) for line in found] == [(0, 0), (0, 1), (2, 0), (2, 1)]
    assert found[0]["cohort"] == {"ids": [0, 1, 2], "is_present": [True] * 3}
    assert len(found[0]["norms"]["updates"]) == 3 and found[0]["drift"]["gamma"] > 0
    assert found[0]["norms"] != found[1]["norms"]


@pytest.mark.parametrize(("done", "left"), [(0, []), (2, [0, 2]), (3, [0, 2])])
def test_rewinding_drops_lines_after_the_checkpoint(tmp_path, done, left):
    told = DiagnosticsLog([0], tmp_path / "diagnostics.jsonl")
    for stop in (0, 2, 4):
        told.add(stop, {"cohort": {"ids": np.zeros((1, 2), int)}, "drift": {"gamma": np.zeros(1)}}, 0.1)
    told.rewind(done)
    assert [line["round"] for line in lines(tmp_path / "diagnostics.jsonl")] == left


@pytest.mark.slow
def test_images_are_stored_beside_the_lines_and_dropped_with_them(tmp_path):
    federation = data.toy(num_clients=2, image=True)
    chosen = {"normalisation": DIAGNOSTICS["normalisation"], "drift": DIAGNOSTICS["drift"]}
    built = Simulation(algorithm("harmofl"), model(), federation, rounds=6, num_seeds=2, diagnostics=chosen)
    told, state = DiagnosticsLog([3, 4], tmp_path / "diagnostics.jsonl"), built.start()
    for stop in (0, 2):
        told.add(stop, built.diagnose(state), 0.1)
    found = lines(tmp_path / "diagnostics.jsonl")
    assert [line["pictures"] for line in found[:2]] == [f"snapshots/round_00000_seed_{seed}.npz" for seed in (3, 4)]
    assert all("normalisation" not in line and "drift" in line for line in found)
    arrays = diagnostics_log.load_images(tmp_path, found[1])["normalisation"]
    expected = built.diagnose(state)["normalisation"]
    assert arrays.keys() == expected.keys()
    for name, values in arrays.items():
        np.testing.assert_array_equal(values, expected[name][1])
    (tmp_path / "snapshots" / ".partial.round_00004_seed_3.npz").touch()
    told.rewind(1)
    left = {file.name for file in (tmp_path / "snapshots").iterdir()}
    assert left == {"round_00000_seed_3.npz", "round_00000_seed_4.npz"}
    told.rewind(0)
    assert not list((tmp_path / "snapshots").iterdir())


def test_diagnostics_without_images_need_no_folder(tmp_path):
    assert (
        diagnostics_log.diagnostics_files("norms, drift") == ["diagnostics.jsonl"]
        and diagnostics_log.diagnostics_files("") == []
    )
    assert diagnostics_log.diagnostics_files("norms, contours") == ["diagnostics.jsonl", "snapshots"]
    assert diagnostics_log.load_images(tmp_path, {"round": 0}) == {}


def test_an_unknown_diagnostic_is_refused_before_compiling(tmp_path, capsys):
    (tmp_path / "config.py").write_text(CONFIG)
    arguments = [
        f"--config={tmp_path / 'config.py'}",
        "--config.diagnostics=norms,drifft",
        f"--workdir={tmp_path / 'a'}",
    ]
    assert train.main(arguments) == 2
    assert "'drifft' is unknown" in capsys.readouterr().err

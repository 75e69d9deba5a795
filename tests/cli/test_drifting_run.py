"""The command `train` on data that change with the round, and the report of its runs."""

import json

import numpy as np
import pytest

from fedjax_het.cli import train
from fedjax_het.cli.report.contents import make_contents
from fedjax_het.cli.runs.results import read_runs

FILE = """
def get_config():
    return dict(
        algorithm=dict(name="fedavg", batch_size=20),
        model=dict(name="mlp", hidden=()),
        data=dict(
            name="digits", num_clients=4, test_fraction=0.0, partition=dict(name="iid"),
            drift=dict(name="recurring", start=2, period=2, repeats=1), concepts=dict(name="swapped"),
        ),
        rounds=6, num_seeds=2, evaluate_every=1, layout="vmapped",
    )
"""
pytestmark = pytest.mark.usefixtures("compiled_once")


@pytest.mark.extended
def test_a_run_records_its_phases_and_the_report_shows_them(config, tmp_path):
    workdir = tmp_path / "run"
    assert train.main([f"--config={config}", f"--workdir={workdir}"]) == 0
    lines = [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]
    assert {"phases/accuracy_0", "phases/accuracy_1", "phases/accuracy_next"} <= lines[0].keys()
    assert "phases/accuracy_2" not in lines[0]  # the first concept returns
    summary = json.loads((workdir / "summary.json").read_text())["phases"]
    first = [line for line in lines if line["seed"] == 0]
    after, before = first[1]["phases/accuracy_next"], first[0]["phases/accuracy_next"]
    second = [line for line in lines if line["seed"] == 1]
    drops = [before - after, second[0]["phases/accuracy_next"] - second[1]["phases/accuracy_next"]]
    assert summary["starts"] == [0, 2, 4] and summary["drop"]["mean"][1] == pytest.approx(np.mean(drops))
    assert (workdir / "phases.png").exists()
    told = make_contents(*read_runs([workdir]))
    assert {"phases"} <= {table.name for table in told.tables} & {figure.name for figure in told.figures}
    curves = next(figure for figure in told.figures if figure.name == "curves")
    assert curves.views[0].panels[0].x_lines == (2, 4)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("--config.data.drift.name=none", "config.data.concepts: has no effect with config.data.drift.name='none'"),
        ("--config.data.drift.name=tasks", "config.data.concepts: has no effect with config.data.drift.name='tasks'"),
        ("--config.data.test_fraction=0.2", "config.data.test_fraction: with a drift, clients are tested on their own"),
        ("--config.data.concepts.name=none", "drift: needs at least two domains of the data set, and there is 1"),
    ],
)
def test_settings_of_a_drift_without_meaning_are_refused(config, tmp_path, capsys, override, message):
    assert train.main([f"--config={config}", f"--workdir={tmp_path / 'run'}", override]) == 2
    assert message in capsys.readouterr().err

"""Each client's figures in the round that does best on validation examples."""

import json
import shutil

import numpy as np
import pytest

from experiments import train
from experiments.papers import measures
from experiments.runs.records import MetricLines
from experiments.runs.run_directory import RunDirectory
from experiments.runs.run_files import SELECTED
from fedjax_het.errors import InputError

CONFIG = """
def get_config():
    return dict(
        algorithm=dict(name="fedbn", batch_size=16, learning_rate=1.0),
        model=dict(name="mlp", hidden=(8,), norm="batch"),
        data=dict(name="digits", num_clients=3, partition=dict(name="iid"), valid_fraction=0.2),
        rounds=8, num_seeds=2, evaluate_every=1, checkpoint_every=2, layout="vmapped",
    )
"""


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("selected")
    (folder / "config.py").write_text(CONFIG)
    assert started(folder, "run") == 0
    return folder


def started(folder, name):
    return train.main([f"--config={folder / 'config.py'}", f"--workdir={folder / name}", "--no_compilation_cache"])


def test_the_selected_rows_are_those_of_the_selected_rounds(finished):
    run = RunDirectory(finished / "run")
    summary = run.read("summary.json")
    chosen, lines = summary["selected"], MetricLines(run / SELECTED).read()
    assert chosen["by"] == "personal_valid/accuracy_mean"
    best = {line["seed"]: line for line in lines}
    assert [best[seed]["round"] for seed in (0, 1)] == chosen["rounds"] != [summary["rounds"]] * 2
    for key, name in (("personal_accuracy", "personal/accuracy_mean"), ("accuracy", "clients/accuracy_mean")):
        means = [np.mean([row[key] for row in best[seed]["clients"]]) for seed in (0, 1)]
        assert means == pytest.approx(chosen["figures"][name]["seeds"], rel=1e-6)


def test_tables_read_them(finished):
    run = RunDirectory(finished / "run")
    columns = {when: [measures.own(is_selected=when)(run, column) for column in "ABC"] for when in (False, True)}
    assert columns[False] != columns[True]
    for when, values in columns.items():
        assert np.mean(values, axis=0) == pytest.approx(measures.on_own(is_selected=when)(run, "-"), rel=1e-6)


def test_a_killed_run_goes_on_to_the_same_rows(finished):
    """Killed with the checkpoint of round 6 and the lines of all rounds written."""
    shutil.copytree(finished / "run", finished / "killed")
    (finished / "killed" / "summary.json").unlink()
    checkpoints = [each for each in (finished / "killed" / "checkpoints").iterdir() if each.name.isdigit()]
    assert max(int(each.name) for each in checkpoints) == 8
    for each in checkpoints:
        if int(each.name) > 6:
            shutil.rmtree(each)
    assert started(finished, "killed") == 0
    assert (finished / "killed" / SELECTED).read_bytes() == (finished / "run" / SELECTED).read_bytes()


def test_where_nobody_has_validation_examples_that_is_said(tmp_path):
    (tmp_path / "summary.json").write_text(json.dumps({"selected": None, "final": {}}))
    for measure in (measures.own(is_selected=True), measures.on_own(is_selected=True)):
        with pytest.raises(InputError, match=r"nobody has validation examples. Set data.valid_fraction"):
            measure(RunDirectory(tmp_path), "A")


@pytest.mark.parametrize("what", ["torn", "cut off"])
def test_a_damaged_file_of_selected_rows_is_refused_with_how_to_go_on(finished, what, capsys):
    shutil.copytree(finished / "run", finished / what)
    path = finished / what / SELECTED
    lines = path.read_text().splitlines(keepends=True)
    damaged = [lines[0][:20] + "\n", *lines[1:]] if what == "torn" else lines[:-1]
    path.write_text("".join(damaged))
    assert started(finished, what) == 2
    message = capsys.readouterr().err
    assert f"{path}" in message and ("line 1: not JSON" if what == "torn" else "there is no line for round") in message
    assert "Put back what was there, or " in message

"""Each client's metrics in the best round on validation examples."""

import json
import shutil

import numpy as np
import pytest

from experiments import measures
from fedjax_het.cli import train
from fedjax_het.cli.runs.records import MetricLines
from fedjax_het.cli.runs.results import RunResults
from fedjax_het.cli.runs.run_files import SELECTED
from fedjax_het.errors import InputError
from tests.cli.runs.test_results import SUMMARY

pytestmark = pytest.mark.extended

CONFIG = """
def get_config():
    return dict(
        algorithm=dict(name="fedbn", batch_size=16, learning_rate=1.0),
        model=dict(name="mlp", hidden=(8,), norm="batch"),
        data=dict(
            name="digits", num_clients=3, partition=dict(name="iid"), valid_fraction=0.2, client_test_fraction=0.2
        ),
        rounds=8, num_seeds=2, evaluate_every=1, checkpoint_every=2, layout="vmapped",
    )
"""


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("selected")
    (folder / "config.py").write_text(CONFIG)
    reads, read = [], MetricLines.read
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MetricLines, "read", lambda self: reads.append(self.path.name) or read(self))
        assert train_run(folder, "run") == 0
    assert reads.count("metrics.jsonl") <= 2  # at the start and at the end, not at each of the eight evaluations
    return folder


def train_run(folder, name):
    return train.main([f"--config={folder / 'config.py'}", f"--workdir={folder / name}"])


@pytest.mark.slow
def test_selected_rows_are_those_of_the_selected_rounds(finished):
    run = RunResults(finished / "run")
    summary = run.summary
    chosen, lines = summary["selected"], MetricLines(run.directory / SELECTED).read()
    assert chosen["by"] == "personal_valid/accuracy_mean"
    best = {line["seed"]: line for line in lines}
    assert [best[seed]["round"] for seed in (0, 1)] == chosen["rounds"] != [summary["rounds"]] * 2
    for key, name in (("personal_accuracy", "personal/accuracy_mean"), ("accuracy", "clients/accuracy_mean")):
        means = [np.mean([row[key] for row in best[seed]["clients"]]) for seed in (0, 1)]
        assert means == pytest.approx(chosen["figures"][name]["seeds"], rel=1e-6)


@pytest.mark.slow
def test_measures_read_the_selected_rows(finished):
    run = RunResults(finished / "run")
    columns = {
        when: [measures.read_client_score(is_selected=when)(run, column) for column in "ABC"] for when in (False, True)
    }
    assert columns[False] != columns[True]
    for when, values in columns.items():
        assert np.mean(values, axis=0) == pytest.approx(
            measures.read_mean_client_score(is_selected=when)(run, "-"), rel=1e-6
        )


def test_a_killed_run_resumes_to_the_same_selected_rows(finished):
    """A run that was killed after the checkpoint of round 6 and the lines of all rounds."""
    shutil.copytree(finished / "run", finished / "killed")
    (finished / "killed" / "summary.json").unlink()
    checkpoints = [path for path in (finished / "killed" / "checkpoints").iterdir() if path.name.isdigit()]
    assert max(int(path.name) for path in checkpoints) == 8
    for folder in checkpoints:
        if int(folder.name) > 6:
            shutil.rmtree(folder)
    assert train_run(finished, "killed") == 0
    assert (finished / "killed" / SELECTED).read_bytes() == (finished / "run" / SELECTED).read_bytes()


def test_selection_without_validation_examples_is_refused(tmp_path):
    (tmp_path / "summary.json").write_text(json.dumps(SUMMARY | {"selected": None}))
    for measure in (measures.read_client_score(is_selected=True), measures.read_mean_client_score(is_selected=True)):
        with pytest.raises(InputError, match=r"no client has validation examples. Set data.valid_fraction"):
            measure(RunResults(tmp_path), "A")


@pytest.mark.parametrize("what", ["torn", "cut off"])
def test_the_error_for_damaged_selected_rows_says_how_to_go_on(finished, what, capsys):
    shutil.copytree(finished / "run", finished / what)
    path = finished / what / SELECTED
    lines = path.read_text().splitlines(keepends=True)
    damaged = [lines[0][:20] + "\n", *lines[1:]] if what == "torn" else lines[:-1]
    path.write_text("".join(damaged))
    assert train_run(finished, what) == 2
    message = capsys.readouterr().err
    assert f"{path}" in message and ("line 1: not JSON" if what == "torn" else "there is no line for round") in message
    assert "Put it back, or delete the folder" in message

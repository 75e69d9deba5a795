"""Trade-offs of accuracy: their runs are valid, and finished and refused runs are written and drawn."""

import csv
import json

import pytest

from experiments import tradeoffs
from experiments.tradeoffs import ALGORITHMS, ALPHAS, TOPICS
from fedjax_het.cli.configuration import build
from fedjax_het.cli.sweep.training import GridResult

PATHS = {"fashion_mnist": "fashion_mnist.npz"}


@pytest.mark.parametrize("name", TOPICS)
def test_every_run_has_valid_settings_and_a_directory_of_its_own(name):
    all_settings = {}
    for run in TOPICS[name].experiment.make_runs("cpu", {}, PATHS).values():
        if run.name not in all_settings:
            all_settings[run.name] = run.settings()
            build.build_algorithm(all_settings[run.name])
            size = build._build_participation(all_settings[run.name], 100).expected_size(100)
            assert size == (100 if name == "topologies" else 10)
            assert all_settings[run.name]["data"]["path"] == "fashion_mnist.npz"
    texts = [json.dumps(settings, sort_keys=True, default=str) for settings in all_settings.values()]
    assert len(set(texts)) == len(texts) and len(texts) > len(ALGORITHMS) * len(ALPHAS)


def test_what_the_command_line_sets_takes_precedence():
    given = {"rounds": "3", "algorithm.learning_rate": "0.5"}
    runs = TOPICS["devices"].experiment.make_runs("cpu", given, PATHS).values()
    assert {(run.settings()["rounds"], run.settings()["algorithm"]["learning_rate"]) for run in runs} == {(3, 0.5)}


@pytest.mark.extended
@pytest.mark.parametrize(
    ("error", "status"), [("exit status 2: error: clients report", 0), ("exit status 1: killed", 1)]
)
def test_runs_that_are_done_or_refused_are_written_and_drawn(tmp_path, monkeypatch, error, status):
    def train(runs, folder):
        for run in runs:
            is_refused = "name=scaffold" in run.name and "gaussian" in run.name
            (folder / run.name).mkdir(parents=True)
            line = {"round": 60, "seconds": 1.0, "test/accuracy": 0.5, "privacy/epsilon": 2.0}
            lines = [json.dumps(line | {"seed": 0}), json.dumps(line | {"seed": 1, "test/accuracy": 0.7})]
            (folder / run.name / "metrics.jsonl").write_text("\n".join(lines) + "\n")
            yield GridResult(run, folder / run.name, error if is_refused else "done", 1.0)

    monkeypatch.setattr("fedjax_het.cli.sweep.training.run_grid", train)
    (tmp_path / "data.npz").touch()
    flags = [f"--data={tmp_path / 'data.npz'}", "--topic=privacy", f"--workdir={tmp_path}", f"--out={tmp_path}"]
    assert tradeoffs.main(flags) == status
    rows = list(csv.DictReader((tmp_path / "privacy.csv").open()))
    assert len(rows) == len(TOPICS["privacy"].experiment.make_runs("cpu", {}, PATHS))
    refused = [row for row in rows if row["status"] == error.replace("exit status 2: error:", "refused:")]
    assert {row["algorithm"] for row in refused} == {"SCAFFOLD"} and not any(row["seeds"] for row in refused)
    private = next(row for row in rows if row["algorithm"] == "FedAvg" and row["epsilon"] == "2")
    assert (float(private["test accuracy, %"]), private["seeds"]) == (60.0, "50.0;70.0")
    picture = (tmp_path / "privacy.svg").read_text()
    assert ("epsilon (refused)" in picture) == (status == 0) and "Dirichlet(0.1)" in picture

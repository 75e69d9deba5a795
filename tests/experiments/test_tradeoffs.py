"""Trade-offs of accuracy: their runs are valid, and what is done or refused is written and drawn."""

import csv
import json

import pytest

from experiments import tradeoffs
from experiments.tradeoffs import ALGORITHMS, ALPHAS, TOPICS, make_runs
from fedjax_het.cli.configuration import build
from fedjax_het.cli.sweep.grid import GridResult

GIVEN = {"data.path": "fashion_mnist.npz"}


@pytest.mark.parametrize("name", TOPICS)
def test_every_run_has_valid_settings_and_a_directory_of_its_own(name):
    settings_of = {}
    for _, run in make_runs(TOPICS[name], GIVEN):
        if run.name not in settings_of:
            settings_of[run.name] = run.settings()
            build.build_algorithm(settings_of[run.name])
            assert build._build_participation(settings_of[run.name], 100).expected_size(100) == 10
    texts = [json.dumps(each, sort_keys=True, default=str) for each in settings_of.values()]
    assert len(set(texts)) == len(texts) and len(texts) > len(ALGORITHMS) * len(ALPHAS)


def test_what_the_command_line_sets_takes_precedence():
    runs = make_runs(TOPICS["devices"], GIVEN | {"rounds": "3", "algorithm.learning_rate": "0.5"})
    assert {(run.settings()["rounds"], run.settings()["algorithm"]["learning_rate"]) for _, run in runs} == {(3, 0.5)}


@pytest.mark.extended
def test_runs_that_are_done_or_refused_are_written_and_drawn(tmp_path):
    runs, results = make_runs(TOPICS["privacy"], GIVEN), {}
    for place, run in runs:
        is_refused = place.algorithm == "SCAFFOLD" and place.point.x is None
        results[run.name] = GridResult(run, tmp_path / run.name, "done", 1.0)
        if is_refused:
            results[run.name] = results[run.name]._replace(status="exit status 2: error: clients report")
            continue
        (tmp_path / run.name).mkdir(exist_ok=True)
        line = {"round": 60, "seconds": 1.0, "test/accuracy": 0.5, "privacy/epsilon": 2.0}
        lines = [json.dumps(line | {"seed": 0}), json.dumps(line | {"seed": 1, "test/accuracy": 0.7})]
        (tmp_path / run.name / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    assert tradeoffs.write_topic("privacy", runs, results, tmp_path)
    rows = list(csv.DictReader((tmp_path / "privacy.csv").open()))
    assert len(rows) == len(runs)
    refused = [row for row in rows if row["status"] == "refused: clients report"]
    assert {row["algorithm"] for row in refused} == {"SCAFFOLD"} and not any(row["seeds"] for row in refused)
    private = next(row for row in rows if row["algorithm"] == "FedAvg" and row["epsilon"] == "2")
    assert (float(private["test accuracy, %"]), private["seeds"]) == (60.0, "50.0;70.0")
    picture = (tmp_path / "privacy.svg").read_text()
    assert "epsilon (refused)" in picture and "Dirichlet(0.1)" in picture
    failed = results | {runs[0][1].name: GridResult(runs[0][1], tmp_path, "exit status 1: no memory", 1.0)}
    assert not tradeoffs.write_topic("privacy", runs, failed, tmp_path)

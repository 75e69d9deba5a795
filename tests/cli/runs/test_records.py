"""The records of a run."""

import csv
import json

import numpy as np
import pytest

from fedjax_het.cli.runs import json_files, records
from fedjax_het.data import toy
from fedjax_het.engine.evaluation.evaluate import Evaluation, Metrics

LINES = [
    {"round": round, "seed": seed, "train/loss": 1.0 + seed, "num_dropped": 0, "seconds": 0.5}
    for round in (2, 4)
    for seed in (0, 1)
]


@pytest.fixture
def log(tmp_path):
    log = records.MetricLines(tmp_path / "metrics.jsonl")
    log.add(LINES[:2])
    log.add(LINES[2:])
    return log


def metrics(*shape, num_examples=4):
    values = np.linspace(0.1, 0.9, int(np.prod(shape))).reshape(shape)
    return Metrics(loss=2 * values, accuracy=values, num_examples=np.full(shape, num_examples))


def test_lines_are_read_back_unchanged(log):
    assert log.read() == LINES


def test_a_torn_last_line_is_ignored(log):
    whole = log.path.read_text()
    log.path.write_text(whole + '{"round": 6, "se')
    assert log.read() == LINES
    assert log.rewind(4) == LINES and log.path.read_text() == whole


@pytest.mark.parametrize(("done", "num_left"), [(0, 0), (2, 2), (3, 2), (4, 4)])
def test_rewinding_drops_lines_after_the_checkpoint(log, done, num_left):
    assert log.rewind(done) == LINES[:num_left] == log.read()


def test_reading_on_returns_each_whole_line_once(log):
    assert log.read_new() == LINES and log.read_new() == []
    line = {"round": 6, "seed": 0, "µ": 1.0}
    text = json.dumps(line, ensure_ascii=False)
    log.path.write_text(log.path.read_text() + text[:9])
    assert log.read_new() == []
    log.path.write_text(log.path.read_text() + text[9:] + "\n")
    assert log.read_new() == [line] and log.read_new() == []


def test_a_missing_file_has_no_lines(tmp_path):
    log = records.MetricLines(tmp_path / "metrics.jsonl")
    assert log.read() == [] and log.read_new() == [] and log.rewind(0) == []


def test_metrics_have_one_line_per_seed():
    lines = records.metric_records(7, [3, 4], 1.5, {"test/accuracy": np.array([0.25, 0.5], np.float32)})
    assert lines == [
        {"round": 7, "seed": 3, "test/accuracy": 0.25, "seconds": 1.5},
        {"round": 7, "seed": 4, "test/accuracy": 0.5, "seconds": 1.5},
    ]


def test_per_client_rows_have_empty_cells_for_unmeasured_figures():
    federation = toy(num_clients=3)
    clients = metrics(2, 3)
    clients.num_examples[:, 1] = 0
    evaluation = Evaluation(None, clients, metrics(2, 3), None, {})
    rows = list(csv.DictReader(records.client_csv(evaluation, federation, [5, 6], {}).splitlines()))
    assert [(row["seed"], row["client"]) for row in rows] == [
        (seed, name) for seed in ("5", "6") for name in federation.client_names
    ]
    assert [int(row["num_train"]) for row in rows[:3]] == federation.data.train.count.tolist()
    assert rows[1]["accuracy"] == "" and float(rows[2]["accuracy"]) == clients.accuracy[0, 2]
    assert float(rows[0]["personal_loss"]) == evaluation.personal.loss[0, 0]
    assert "personal_test_loss" not in rows[0]
    evaluation = evaluation._replace(personal=None, personal_test=metrics(2, 3))
    rows = list(csv.DictReader(records.client_csv(evaluation, federation, [5, 6], {}).splitlines()))
    assert rows[0]["personal_loss"] == ""
    assert float(rows[4]["personal_test_loss"]) == evaluation.personal_test.loss[1, 1]


def test_the_final_figures_are_those_of_the_last_round_over_seeds():
    assert records.final_figures(LINES)["train/loss"] == {"mean": 1.5, "std": 0.5, "seeds": [1.0, 2.0]}
    alone = records.final_figures([LINES[0], LINES[2]])["train/loss"]
    assert alone == {"mean": 1.0, "std": None, "seeds": [1.0]}
    assert "seconds" not in records.final_figures(LINES)


def test_the_selected_round_of_a_seed_is_the_best_on_validation():
    accuracies = {(2, 0): (0.5, 0.9), (4, 0): (0.7, 0.1), (6, 0): (0.7, 0.8), (2, 1): (0.6, 0.3), (4, 1): (0.4, 0.9)}
    lines = [
        {"round": round, "seed": seed, "valid/accuracy_mean": valid, "test/accuracy": test, "seconds": 1.0}
        for (round, seed), (valid, test) in accuracies.items()
    ]
    found = records.selected_figures(lines)
    assert found["rounds"] == [4, 2]
    assert found["figures"]["test/accuracy"]["seeds"] == [0.1, 0.3]
    assert found["figures"].keys() == {"valid/accuracy_mean", "test/accuracy"}


def test_selection_over_several_lines_matches_the_whole_file():
    scores = [(0.5, None), (float("nan"), None), (0.7, 0.1)]
    lines = [
        {"round": i, "seed": 0, "x": 1.0, "valid/accuracy_mean": a, "valid/dice_mean": b, "seconds": 1.0}
        for i, (a, b) in enumerate(scores)
    ]
    for end in (1, 2, 3):
        written = [json.loads(json_files.to_json(line)) for line in lines[:end]]
        reduced = list(map(records.selection_line, lines[:end]))
        improving = [line["round"] for line in records.improving_lines(reduced)]
        assert improving == [line["round"] for line in records.improving_lines(written)]
        assert (improving == [0]) == (end == 1)


def test_nothing_is_selected_without_validation_examples():
    assert records.selected_figures(LINES) is None


def test_personal_models_decide_the_selection_if_clients_have_some():
    figures = {"valid/accuracy_mean": (0.9, 0.1), "personal_valid/accuracy_mean": (0.2, 0.3)}
    lines = [
        {"round": round, "seed": 0, **{name: values[i] for name, values in figures.items()}, "seconds": 1.0}
        for i, round in enumerate((2, 4))
    ]
    found = records.selected_figures(lines)
    assert (found["by"], found["rounds"]) == ("personal_valid/accuracy_mean", [4])

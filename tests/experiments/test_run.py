"""The runner of experiments: its errors before the first run, choices and refits, and the tables of results."""

import csv
import io
import json
from types import SimpleNamespace

import numpy as np
import pytest
from safetensors.numpy import save_file

from experiments import run as runner
from experiments import tables
from experiments.measures import read_final
from experiments.papers import __main__ as papers
from experiments.papers import fedrd
from experiments.spec import Entry, Experiment, Scale
from fedjax_het.cli.sweep.training import GridResult
from fedjax_het.errors import InputError
from tests.cli.runs.test_results import SUMMARY


def make_entry(row, column, printed, seeds):
    return Entry("accuracy", row, column, printed, seeds)


TWO = Experiment(
    title="A table",
    rows={"FedAvg": {}, "FedLD": {}},
    measures={"accuracy": read_final("test/accuracy")},
    scales={
        "cpu": Scale("quickstart", {}, {"S1": {}, "S2": {}}, "less data", {"a": "an archive", "b": "a folder"}),
        "paper": Scale("quickstart", {}, {"S1": {}, "S2": {}}),
    },
    printed={"accuracy": {"FedAvg": (80.0, 70.5), "FedLD": (81.0, None)}},
    caveats=("A misprint.",),
)
ENTRIES = [
    make_entry("FedAvg", "S1", 80.0, [79.0, 80.0]),
    make_entry("FedAvg", "S2", 70.5, [71.0, 71.0]),
    make_entry("FedLD", "S1", 81.0, []),
    make_entry("FedLD", "S2", None, [60.25]),
]


def test_markdown_has_printed_and_measured_values_side_by_side():
    lines = tables.to_markdown(TWO, "cpu", ENTRIES).splitlines()
    assert "| accuracy | S1 paper | S1 here | S1 difference | S2 paper | S2 here | S2 difference |" in lines
    assert "| FedAvg | 80 | 79.50 ± 0.50 | -0.50 | 70.5 | 71.00 ± 0.00 | +0.50 |" in lines
    assert "| FedLD | 81 | no result |  |  | 60.25 |  |" in lines
    assert "Reduced: less data." in lines and "- A misprint." in lines


def test_markdown_says_what_the_runs_of_each_column_are_trained_and_measured_on():
    def run(num_train):
        clients = [{"client": "a", "is_newcomer": False, "train": num_train, "valid": 0, "test": 0}]
        partition = {"test": 12, "unseen": {}, "fractions": {"test": None}, "clients": clients}
        return SimpleNamespace(partition=partition, final={"test/accuracy": {}, "test/loss": {}, "train/loss": {}})

    runs = {("FedAvg", "S1"): run(50), ("FedAvg", "S2"): run(60), ("FedLD", "S2"): run(60)}
    text = tables.to_markdown(TWO, "cpu", ENTRIES, runs=runs)
    measured = "measured on 12 examples, the data set's own test split."
    assert f"S1: trained on 50 examples of 1 client (50 each), none of theirs held out; {measured}" in text
    assert f"S2: trained on 60 examples of 1 client (60 each), none of theirs held out; {measured}" in text


def test_the_csv_has_all_digits():
    rows = list(csv.DictReader(io.StringIO(tables.to_csv(ENTRIES))))
    assert rows[0]["seeds"] == "79.0;80.0" and float(rows[0]["difference"]) == -0.5
    assert rows[2]["mean"] == rows[2]["std"] == rows[0]["paper std"] == ""
    chosen = make_entry("FedLD", "S1", 81.0, [1 / 3])._replace(deviation=0.5, choice="0.1")
    assert tables.read_csv(tables.to_csv([*ENTRIES, chosen])) == [*ENTRIES, chosen]


def test_printed_deviations_are_shown_beside_printed_values():
    entry = make_entry("FedAvg", "S1", 80.0, [79.0])._replace(deviation=0.25)
    assert "| FedAvg | 80 ± 0.25 | 79.00 | -1.00 |" in tables.to_markdown(
        TWO._replace(rows={"FedAvg": {}}), "paper", [entry]
    )
    (row,) = csv.DictReader(io.StringIO(tables.to_csv([entry])))
    assert (row["paper"], row["paper std"]) == ("80.0", "0.25")
    table = fedrd.EXPERIMENTS["table2"]
    assert table.printed_value("accuracy", "FedRD", "P") == (89.98, 0.18)
    assert table.printed_value("accuracy", "FedRD", "Avg.") == (71.52, 0.25)


def test_printed_values_are_shown_beside_comparable_results_only(tmp_path, monkeypatch):
    """None at the smallest scale, and no average over columns that differ from the paper's."""
    monkeypatch.setattr(runner.training, "run_grid", lambda cells, folder: iter(()))
    table = fedrd.EXPERIMENTS["table5"]
    cpu = table.scales["cpu"]
    fewer = {column: cpu.columns[column] for column in "PA"}
    table = table._replace(scales={**table.scales, "fewer": cpu._replace(columns=fewer)})
    for scale, is_compared, has_average in (("smoke", False, False), ("fewer", True, False), ("cpu", True, True)):
        data = [str(tmp_path)] if table.scales[scale].data else []
        is_done, text = papers.reproduce(table, scale, data, {}, tmp_path, "table5")
        assert not is_done
        assert ("difference" in text, "88.02 ± 0.63" in text, "68.2 ± 0.24" in text) == (
            is_compared,
            is_compared,
            has_average,
        )


def test_the_result_names_settings_given_on_the_command_line():
    published = TWO.scales["paper"]._replace(pretrained="ImageNet weights")
    asked = TWO._replace(scales={**TWO.scales, "paper": published})

    def describe(experiment, scale, **common):
        return tables.to_markdown(experiment, scale, ENTRIES, {key.replace("__", "."): x for key, x in common.items()})

    assert "The published setting.\n" in describe(TWO, "paper") and "Set on" not in describe(
        TWO, "paper", layout="vmapped"
    )
    assert "Reduced: less data.\n\nSet on the command line: rounds=3." in describe(
        TWO, "cpu", rounds="3", layout="auto"
    )
    assert "The published setting.\n" in describe(asked, "paper", model__pretrained="weights.safetensors")
    assert "The published setting, but training starts from random weights, not from ImageNet weights.\n" in describe(
        asked, "paper", model__pretrained="None"
    )


def test_missing_data_are_named_before_training(tmp_path, capsys):
    arguments = ["--what=table2", "--scale=cpu", f"--workdir={tmp_path / 'runs'}"]
    assert papers.main(["fedld", *arguments]) == 2
    assert "--data: this experiment reads the X-rays' .npz file. Give --data=PATH." in capsys.readouterr().err
    assert papers.main(["fedld", *arguments, "--data=nowhere.npz"]) == 2
    assert "--data: 'nowhere.npz' does not exist. Give the path of the X-rays' .npz file." in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


@pytest.mark.extended
def test_missing_initial_weights_are_named_before_training(tmp_path, capsys):
    save_file({"conv1.weight": np.zeros((64, 3, 7, 7), np.float32)}, tmp_path / "other.safetensors")
    arguments = ["--what=table2", "--scale=paper", f"--data={tmp_path}", f"--workdir={tmp_path / 'runs'}"]
    for given, words in (
        ([], "starts from ImageNet weights of ResNet-18. Set --config.model.pretrained=FILE.safetensors"),
        (["nowhere.safetensors"], "there is no file 'nowhere.safetensors'"),
        ([str(tmp_path / "other.safetensors")], "layer1.0.conv1.weight"),
    ):
        given = [f"--config.model.pretrained={text}" for text in given]
        assert papers.main(["fedrd", *arguments, *given]) == 2
        error = capsys.readouterr().err
        assert words in error and error.startswith("error: ")
        assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["/x"], "reads an archive. Give --data=a=PATH"),
        (["a=/x"], "reads a folder. Give --data=b=PATH"),
        (["a=/x", "b=/y", "c=/z"], "--data=c: this experiment does not read it"),
    ],
)
def test_data_sets_have_to_be_given_by_name_if_several_are_read(tmp_path, given, message):
    with pytest.raises(InputError, match=message):
        papers.reproduce(TWO, "cpu", given, {}, tmp_path, "table")


def test_the_error_for_a_missing_scale_names_the_existing_ones(tmp_path, capsys):
    arguments = ["--what=table3", "--scale=cpu", f"--workdir={tmp_path}"]
    assert papers.main(["fedrd", *arguments]) == 2
    assert "'table3' exists at smoke, paper" in capsys.readouterr().err


RATES = {rate: {"algorithm.learning_rate": rate} for rate in ("0.1", "0.3")}
CHOSEN = TWO._replace(
    measures={"accuracy": read_final("test/accuracy")},
    scales={"cpu": Scale("quickstart", {}, {"S1": {}}, "less data")},
    printed={},
    choices=RATES,
    reference="FedAvg",
    rows={"FedAvg": {"algorithm.name": "fedavg"}, "FedLD": {"algorithm.name": "fedld"}},
)
SCORES = {
    ("fedavg", "0.1"): (0.8, 0.6),
    ("fedavg", "0.3"): (0.7, 0.9),
    ("fedld", "0.1"): (0.5, 0.5),
    ("fedld", "0.3"): "exit status 2: error: out of range",
}
"""{(algorithm, rate): (accuracy on validation, on test examples) or an error}."""


def train_as_scored(runs, folder):
    for run in runs:
        score = SCORES[run.own["algorithm.name"], run.own["algorithm.learning_rate"]]
        if not isinstance(score, str):
            names = ("valid/accuracy_mean", "test/accuracy")
            final = {
                name: {"mean": value, "std": None, "seeds": [value]} for name, value in zip(names, score, strict=True)
            }
            (folder / run.name).mkdir(parents=True)
            (folder / run.name / "summary.json").write_text(json.dumps(SUMMARY | {"final": final}))
        yield GridResult(run, folder / run.name, score if isinstance(score, str) else "done", 1.0)


@pytest.mark.parametrize(
    ("scores", "reported"),
    [({"0.1": None, "0.3": 0.6}, "| FedAvg | 90.00 (0.3) |"), ({"0.1": None, "0.3": None}, "no result (diverged)")],
)
def test_a_choice_that_diverged_is_never_reported(tmp_path, monkeypatch, scores, reported):
    for rate, score in scores.items():
        monkeypatch.setitem(SCORES, ("fedavg", rate), (score, 0.9))
    monkeypatch.setattr(runner.training, "run_grid", train_as_scored)
    single = CHOSEN._replace(rows={"FedAvg": CHOSEN.rows["FedAvg"]})
    is_done, text = papers.reproduce(single, "cpu", [], {}, tmp_path, "table")
    assert reported in text and is_done == ("0.3" in reported)


def test_a_chosen_run_is_retrained_with_new_seeds_and_diagnosed_at_its_ends(tmp_path, monkeypatch):
    trained = []

    def train(runs, folder):
        trained.append([run.own for run in runs])
        return train_as_scored(runs, folder)

    monkeypatch.setattr(runner.training, "run_grid", train)
    refitted = CHOSEN._replace(refit={"num_seeds": "5", "diagnostics": "norms"})
    papers.reproduce(refitted, "cpu", [], {"num_seeds": "3", "rounds": "7"}, tmp_path, "table")
    trials, (refit,), *_ = trained
    assert [settings["algorithm.learning_rate"] for settings in trials] == ["0.1", "0.3"] and len(trained) == 4
    expected = {"seed": "3", "num_seeds": "5", "diagnostics": "norms", "diagnose_every": "6"}
    assert refit == trials[0] | expected
    trained.clear()
    single = refitted._replace(choices={"": {"algorithm.learning_rate": "0.1"}})
    papers.reproduce(single, "cpu", [], {}, tmp_path / "single", "table")
    assert ["seed" in settings for runs in trained for settings in runs] == [True, True]


def test_one_choice_is_made_on_validation_examples_alone(tmp_path, monkeypatch):
    monkeypatch.setattr(runner.training, "run_grid", train_as_scored)
    is_done, text = papers.reproduce(CHOSEN, "cpu", [], {}, tmp_path, "table")
    assert is_done
    assert "| FedAvg | 60.00 (0.1) |" in text and "| FedLD | 50.00 (0.1) |" in text
    assert "More than 5 points below FedAvg: FedLD (S1: -10.0)." in text
    assert "Failed:\n\n- fedavg,name=fedld,learning_rate=0.3: exit status 2: error: out of range" in text.replace(
        "quickstart,name", "fedavg,name"
    )
    rows = list(csv.DictReader((tmp_path / "table-cpu.csv").open(newline="")))
    assert [(row["row"], row["seeds"], row["choice"]) for row in rows] == [
        ("FedAvg", "60.0", "0.1"),
        ("FedLD", "50.0", "0.1"),
    ]


def test_a_setting_that_is_chosen_for_each_row_cannot_be_given(tmp_path):
    with pytest.raises(InputError, match=r"learning_rate: it is chosen for each row, from 0.1, 0.3\. Omit"):
        papers.reproduce(CHOSEN, "cpu", [], {"algorithm.learning_rate": "0.2"}, tmp_path / "runs", "table")
    assert not (tmp_path / "runs").exists()


def test_a_stopped_command_leaves_the_tables_of_the_rows_whose_choices_have_all_ended(tmp_path, monkeypatch):
    def train_three(runs, folder):
        for number, result in enumerate(train_as_scored(runs, folder)):
            if number == 3:
                raise KeyboardInterrupt
            yield result

    monkeypatch.setattr(runner.training, "run_grid", train_three)
    with pytest.raises(KeyboardInterrupt):
        papers.reproduce(CHOSEN, "cpu", [], {}, tmp_path, "table")
    text = (tmp_path / "table-cpu.md").read_text()
    assert "| FedAvg | 60.00 (0.1) |" in text and "| FedLD | no result |" in text
    assert "More than 5 points below FedAvg: none." in text

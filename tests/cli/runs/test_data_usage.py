"""Descriptions of the examples that a run trains on and is measured on, and runs whose clients hold out no examples."""

import contextlib
import csv
import io
import json
import shutil

import numpy as np
import pytest

from fedjax_het import engine
from fedjax_het.cli import train
from fedjax_het.cli.report import contents
from fedjax_het.cli.runs import data_usage, records
from fedjax_het.cli.runs.results import RunResults
from fedjax_het.cli.runs.tables import LabeledRun, result_tables
from fedjax_het.data import assemble, by_domain, federate, iid, toy

CONFIG = """
def get_config():
    return dict(
        algorithm=dict(name="fedbn", batch_size=8),
        model=dict(name="mlp", hidden=(4,), norm="batch"),
        data=dict(name="arrays", num_clients=3, partition=dict(name="iid")),
        rounds=2, evaluate_every=1, layout="chunked(1)",
    )
"""


KINDS = ("images", "labels")
SOME = {"client_test_fraction": 0.5}


def images(num, seed=0):
    rng = np.random.default_rng(seed)
    return rng.integers(0, 256, (num, 6, 6), dtype=np.uint8), rng.permutation(np.arange(num) % 3)


def dataset(own_test=False, own_valid=False):
    inputs, labels = images(90)
    is_valid = np.arange(90) < 18 if own_valid else None
    is_test = np.arange(90) >= 78 if own_test else None
    domains = {"domains": np.arange(90) % 3, "domain_names": ("art", "photo", "sketch")}
    return assemble("x", inputs, labels, is_valid=is_valid, is_test=is_test, **domains)


def rows(federation, has_personal=False, on_test=False):
    partition = records.describe_partition(federation)
    return data_usage.describe_groups(partition, data_usage.measured_groups(partition, has_personal, on_test))


# ---- sentences -------------------------------------------------------------------------------------------------------
def test_with_a_published_test_split_clients_train_on_all_other_examples():
    assert rows(federate(dataset(own_test=True), iid(), 4), has_personal=True, on_test=True) == {
        "trains on": "78 examples of 4 clients (19 to 20 each), none of theirs held out",
        "test/": "the server's model on 12 examples, the data set's own test split",
        "personal_test/": "each client's own model on 12 examples, the data set's own test split",
        "clients/": data_usage.NOT_MEASURED,
    }


def test_randomly_held_out_examples_are_described_with_their_fraction():
    asked = {"unseen_clients": 1, "valid_fraction": 0.25, "client_test_fraction": 0.2}
    federation = federate(dataset(), by_domain(), 2, unseen_domains="sketch", **asked)
    said = rows(federation, has_personal=True)
    train, valid, test = (table.count for table in federation.data[1:])
    assert said["trains on"].startswith(f"{train.sum()} examples of 2 clients (")
    assert said["trains on"].endswith(f", {valid.sum()} for validation and {test.sum()} for test of theirs held out")
    assert said["test/"] == "the server's model on 12 examples, 20 %, held out at random before clients got theirs"
    own = f"each client's own test examples: {test.sum()} in all, 20 % of each client's, held out at random"
    assert (
        said["clients/"] == f"the server's model on {own}" and said["personal/"] == f"each client's own model on {own}"
    )
    assert "own validation examples" in said["valid/"] and "25 % of each client's" in said["valid/"]
    num = federation.newcomers.test.count.sum()
    assert said["newcomers/"] == f"the server's model on {num} examples of 1 client that never train"
    assert said["unseen/sketch/"] == "the server's model on sketch, a domain that no client has: 30 examples"


def test_published_splits_of_clients_are_described_as_such():
    local = rows(federate(dataset(own_test=True, own_valid=True), by_domain(), 3, local_test=True))
    assert "test/" not in local
    assert local["clients/"].endswith("12 in all, the data set's own test split")
    assert local["valid/"].endswith("18 in all, the data set's own validation split")


def test_descriptions_of_several_runs_name_those_that_differ():
    a, b = (records.describe_partition(federate(dataset(own_test=True), iid(), 3, **x)) for x in ({}, SOME))
    same = data_usage.describe_runs([("a", "", a), ("b", "", a)], ["test"])
    assert same == (
        "Trained on 78 examples of 3 clients (26 each), none of theirs held out; measured on 12 examples, the data "
        "set's own test split."
    )
    by_label = data_usage.describe_runs([("a", "", a), ("b", "", b), ("c", "", a)], ["test"])
    assert by_label.startswith("a, c: trained on 78 examples") and " b: trained on 39 examples" in by_label
    assert data_usage.describe_runs([("a", "", None)], []) == ""
    by_domain_left_out = [
        ("a", left_out, records.describe_partition(federate(dataset(), by_domain(), 2, unseen_domains=left_out)))
        for left_out in ("art", "photo")
    ]
    assert data_usage.describe_runs(by_domain_left_out, ["unseen"]) == (
        "a without art: trained on 48 examples of 2 clients (24 each), none of theirs held out; measured on art, a "
        "domain that no client has: 30 examples. a without photo: trained on 48 examples of 2 clients (24 each), none "
        "of theirs held out; measured on photo, a domain that no client has: 30 examples."
    )


def test_personal_on_test_auto_is_true_only_without_local_test_examples():
    own, common, nothing = toy(), toy(client_test_fraction=0.0), toy(client_test_fraction=0.0, test_fraction=0.0)
    assert [engine.is_personal_on_test("auto", x) for x in (own, common, nothing)] == [False, True, False]
    assert engine.is_personal_on_test(True, own) and not engine.is_personal_on_test(False, common)


# ---- runs ------------------------------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def command(tmp_path_factory):
    folder = tmp_path_factory.mktemp("given")
    (folder / "config.py").write_text(CONFIG)
    parts = {"train": images(48), "test": images(12, seed=1)}
    np.savez(folder / "x.npz", **{f"{n}_{k}": v for n, part in parts.items() for k, v in zip(KINDS, part, strict=True)})
    return [f"--config={folder / 'config.py'}", f"--config.data.path={folder / 'x.npz'}"]


@pytest.fixture(scope="module")
def finished(command, tmp_path_factory):
    """(the directory of a complete run, what it printed)."""
    workdir = tmp_path_factory.mktemp("runs") / "fedbn"
    return workdir, run_train(command, workdir)


def run_train(command, workdir):
    """Run the command, and return what it prints."""
    with contextlib.redirect_stdout(io.StringIO()) as out:
        assert train.main([*command, f"--workdir={workdir}"]) == 0
    return out.getvalue()


def read(path):
    return json.loads(path.read_text())


@pytest.mark.extended
def test_the_header_and_a_complete_run_describe_training_and_measured_examples_once(command, finished):
    begun, _, ended = finished[1].partition("round 1/2")
    assert "trains on" not in ended
    for text in (" ".join(begun.split()), " ".join(run_train(command, finished[0]).split())):
        assert text.count("trains on") == 1
        assert "trains on 48 examples of 3 clients (16 each), none of theirs held out" in text
        assert "test/ the server's model on 12 examples, the data set's own test split" in text
        assert "personal_test/ each client's own model on 12 examples" in text
        assert f"clients/ {data_usage.NOT_MEASURED}" in text
    assert "3 x 12 predictions per evaluation; personal_on_test=False does without" in " ".join(begun.split())
    assert "test/accuracy 0." in ended.splitlines()[0]


@pytest.mark.extended
def test_config_json_holds_the_resolved_values_of_auto(finished):
    config, partition = read(finished[0] / "config.json"), read(finished[0] / "partition.json")
    assert config["data"]["client_test_fraction"] == 0.0 and config["personal_on_test"] is True
    assert (partition["test"], partition["unseen"]) == (12, {})
    assert partition["fractions"] == {"test": None, "client_test": 0.0, "client_valid": 0.0}


@pytest.mark.extended
def test_unmeasured_figures_are_absent_and_personal_models_are_scored(finished):
    lines = [json.loads(line) for line in (finished[0] / "metrics.jsonl").read_text().splitlines()]
    groups = {name.rpartition("/")[0] for name in lines[-1]}
    assert groups == {"", "train", "traffic", "test", "personal_test"}
    assert all(value is not None for line in lines for value in line.values())
    rows = list(csv.DictReader((finished[0] / "per_client.csv").read_text().splitlines()))
    assert all(row["accuracy"] == row["personal_accuracy"] == "" for row in rows)
    assert all(0 <= float(row["personal_test_accuracy"]) <= 1 for row in rows)


@pytest.mark.extended
def test_comparison_and_report_show_measured_figures_with_their_examples(finished):
    found = {table.name: table for table in result_tables([LabeledRun("fedbn", RunResults(finished[0]))])}
    assert found.keys() == {"test", "personal_test"}
    assert all(
        "Trained on 48 examples of 3 clients (16 each), none of theirs held out" in t.note for t in found.values()
    )
    report = {table.name: table for table in contents.make_contents([RunResults(finished[0])]).tables}
    assert report["results"].columns == ["test set", "own models on the test set"]
    assert "test: 12 examples, the data set's own test split; personal_test: 12" in report["results"].note
    assert "fairness_personal_test" in report and "fairness_clients" not in report


@pytest.mark.extended
def test_a_complete_run_matches_auto_and_its_resolved_values_only(finished, command, capsys):
    again = [*command, f"--workdir={finished[0]}"]
    resolved = ["--config.data.client_test_fraction=0", "--config.personal_on_test=true"]
    for arguments in (again, [*again, *resolved]):
        assert train.main(arguments) == 0
        assert "none of theirs held out" in capsys.readouterr().out
    assert train.main([*again, "--config.data.client_test_fraction=0.1"]) == 2
    assert "config.data.client_test_fraction: 0.0 / 0.1" in capsys.readouterr().err
    assert train.main([*again, "--config.personal_on_test=false"]) == 2


@pytest.mark.extended
def test_a_complete_run_of_another_fraction_does_not_match_auto(finished, command, tmp_path, capsys):
    other = shutil.copytree(finished[0], tmp_path / "other")
    config, partition = read(other / "config.json"), read(other / "partition.json")
    config["data"]["client_test_fraction"] = partition["fractions"]["client_test"] = 0.2
    (other / "config.json").write_text(json.dumps(config))
    (other / "partition.json").write_text(json.dumps(partition))
    assert train.main([*command, f"--workdir={other}"]) == 2
    assert "config.data.client_test_fraction: 0.2 / 0.0" in capsys.readouterr().err

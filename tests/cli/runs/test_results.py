"""From run directories to tables."""

import json

import pytest

from fedjax_het.cli.runs.results import RunResults
from fedjax_het.cli.runs.tables import LabeledRun, make_cells, result_tables

FIGURE = {"mean": 0.0, "std": None}
FACTS = ("cohort_size", "num_parameters", "bytes_down", "bytes_up", "compile_seconds", "held_bytes", "peak_bytes")
SUMMARY = {"final": {}, "facts": dict.fromkeys(FACTS, 0), "versions": {}, "rounds": 1}


def write_finished_run(folder, label, domain, seeds, selected=None, score="accuracy"):
    folder.mkdir()
    final = {f"unseen/{domain}/{score}": seeds, "train/loss": [0.0]}
    summary = SUMMARY | {"final": {name: FIGURE | {"seeds": values} for name, values in final.items()}}
    if selected:
        summary["selected"] = {"figures": {f"unseen/{domain}/{score}": {"seeds": selected}}}
    (folder / "summary.json").write_text(json.dumps(summary))
    header = f"seed,client,is_newcomer,{score},personal_{score}\n"
    rows = [f"{seed},{name},False,{value},\n" for name in ("a", "b") for seed, value in enumerate(seeds)]
    (folder / "per_client.csv").write_text(header + "".join(rows) + "0,late,True,0.1,\n")
    return LabeledRun(label, RunResults(folder))


@pytest.fixture
def runs(tmp_path):
    return [
        write_finished_run(tmp_path / "1", "fedavg", "photo", [0.6, 0.8], [0.7, 0.7]),
        write_finished_run(tmp_path / "2", "fedavg", "sketch", [0.4, 0.2], [0.5, 0.5]),
        write_finished_run(tmp_path / "3", "fedbn", "photo", [0.5, 0.5]),
    ]


def test_left_out_domains_are_columns_and_means_are_taken_per_seed(runs):
    table = result_tables(runs)[0]
    assert table.name == "unseen" and table.columns == ["photo", "sketch", "mean", "deviation", "worst"]
    (label, values), (_, incomplete) = table.rows
    assert label == "fedavg"
    assert [round(value.mean, 6) for value in values] == [0.7, 0.3, 0.5, 0.2, 0.3]
    assert [round(value.std, 6) for value in values] == [0.1, 0.1, 0.0, 0.1, 0.1]
    assert incomplete[0].mean == 0.5 and incomplete[1:] == [None, None, None, None]
    assert all(cell.rank is None for cell in next(zip(*[row[3:4] for row in make_cells(table)], strict=True)))


def test_selected_figures_have_a_table_of_their_own(runs):
    table = next(table for table in result_tables(runs) if table.name == "unseen_selected")
    assert "validation" in table.title
    assert [value.mean for value in table.rows[0][1][:2]] == [0.7, 0.5]


def test_training_clients_have_columns_and_newcomers_have_none(runs):
    table = next(table for table in result_tables(runs) if table.name == "clients")
    assert table.columns == ["a", "b", "mean", "deviation", "worst", "worst tenth", "Jain", "Gini"]
    assert not {"personal", "personal_test"} & {table.name for table in result_tables(runs)}


def test_personal_models_on_the_test_set_have_a_table_of_their_own(tmp_path):
    (tmp_path / "summary.json").write_text(json.dumps(SUMMARY))
    header = "seed,client,is_newcomer,accuracy,personal_accuracy,personal_test_accuracy\n"
    (tmp_path / "per_client.csv").write_text(f"{header}0,a,False,0.1,0.2,0.3\n0,b,False,0.1,0.2,0.5\n")
    table = result_tables([LabeledRun("fedbn", RunResults(tmp_path))])[-1]
    assert table.name == "personal_test" and "own model on the common test set" in table.title
    assert [value.mean for value in table.rows[0][1]] == pytest.approx([0.3, 0.5, 0.4, 0.1, 0.3, 0.3, 16 / 17, 0.125])


def test_runs_over_left_out_domains_are_not_pooled_as_seeds(tmp_path):
    runs = []
    for left_out, values in (("photo", [0.2, 0.4]), ("sketch", [0.4, 0.8])):
        run = write_finished_run(tmp_path / left_out, "fedavg", left_out, values)
        path = run.results.directory / "summary.json"
        summary = json.loads(path.read_text())
        summary["final"]["test/accuracy"] = FIGURE | {"seeds": values}
        path.write_text(json.dumps(summary))
        runs.append(run._replace(left_out=left_out))
    found = {table.name: table for table in result_tables(runs)}
    assert found["test"].columns == ["without photo", "without sketch", "mean", "deviation", "worst"]
    assert [round(value.mean, 6) for value in found["test"].rows[0][1]] == [0.3, 0.6, 0.45, 0.15, 0.3]
    assert "mean over the other domains left out" in found["clients"].title
    (client, *_) = found["clients"].rows[0][1]
    assert (round(client.mean, 6), round(client.std, 6)) == (0.45, 0.15)


def test_results_on_masks_are_scored_by_dice(tmp_path):
    run = write_finished_run(tmp_path / "1", "fedavg", "photo", [0.6], score="dice")
    assert all(table.title.startswith("Dice") for table in result_tables([run]))
    assert {table.name for table in result_tables([run])} == {"unseen", "clients"}


def test_requested_metrics_have_tables_of_their_own_in_their_units(tmp_path):
    runs = [
        write_finished_run(tmp_path / domain, "fedavg", domain, values, score="calibration_error")
        for domain, values in (("photo", [0.2, 0.4]), ("sketch", [0.4, 0.8]))
    ]
    for run in runs:  # accuracy is always there
        path = run.results.directory / "summary.json"
        summary = json.loads(path.read_text())
        summary["final"] |= {
            name.replace("calibration_error", score): values
            for name, values in summary["final"].items()
            for score in ("accuracy", "hausdorff")
        }
        path.write_text(json.dumps(summary))
    found = {table.name: table for table in result_tables(runs)}
    assert {"unseen", "unseen_calibration_error", "unseen_hausdorff", "clients_calibration_error"} <= found.keys()
    table = found["unseen_calibration_error"]
    assert table.title.startswith("Expected calibration error of the server's model on the domain left out, after ")
    assert table.columns == ["photo", "sketch", "mean", "deviation", "worst"]
    assert [round(value.mean, 6) for value in table.rows[0][1]] == [0.3, 0.6, 0.45, 0.15, 0.6]  # the largest is worst
    cells = make_cells(found["unseen_hausdorff"])[0]
    assert [cell.text for cell in cells[:2]] == ["0.30 ± 0.10 (2 seeds)", "0.60 ± 0.20 (2 seeds)"]
    assert "Hausdorff distance in pixels" in found["unseen_hausdorff"].title

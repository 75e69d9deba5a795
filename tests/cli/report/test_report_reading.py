"""Reading and naming of runs for the report, and errors for damaged files."""

import json

import pytest

from fedjax_het.cli.report import rows
from fedjax_het.cli.runs.results import MissingRun, read_runs
from fedjax_het.errors import InputError
from tests.cli.report import sample_runs
from tests.cli.report.sample_runs import read_run


def append(path, text):
    with path.open("a") as file:
        file.write(text)


def test_a_finished_run_is_read_completely(tmp_path):
    run = read_run(sample_runs.write_snapshots(sample_runs.write_run(tmp_path / "run")))
    assert run.is_finished and run.status == "finished" and run.done == 10
    assert (len(run.lines), len(run.clients), len(run.snapshots), run.notes) == (4, 6, 4, [])


def test_a_run_without_a_summary_is_shown_as_running_with_its_progress(tmp_path):
    run = read_run(sample_runs.write_run(tmp_path / "run", is_finished=False))
    assert not run.is_finished and run.status.startswith("running: round 10 of 10, last written 20")
    (tmp_path / "run" / "metrics.jsonl").unlink()
    assert read_run(tmp_path / "run").status.startswith("running: round 0 of 10")


def test_a_torn_last_line_is_left_out_with_a_note(tmp_path):
    folder = sample_runs.write_snapshots(sample_runs.write_run(tmp_path / "run", is_finished=False))
    for name in ("metrics.jsonl", "diagnostics.jsonl"):
        append(folder / name, '{"round": 15, "se')
    run = read_run(folder)
    assert len(run.lines) == 4 and len(run.snapshots) == 4
    assert [note.partition(":")[0] for note in run.notes] == ["metrics.jsonl", "diagnostics.jsonl"]


def test_a_round_counts_only_when_all_seeds_have_written_it(tmp_path):
    folder = sample_runs.write_run(tmp_path / "run", is_finished=False)
    append(folder / "metrics.jsonl", json.dumps(sample_runs.metric_line(15, 0, 0.5)) + "\n")
    assert read_run(folder).done == 10


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("metrics.jsonl", "not json\n", "metrics.jsonl, line 1: not JSON"),
        ("metrics.jsonl", '{"step": 1}\n', "line 1: there is no 'round' in it"),
        ("metrics.jsonl", "", "metrics.jsonl ends at round 0, but the run at 10"),
        ("metrics.jsonl", "3\n", "line 1: there is no 'round' in it"),
        ("config.json", '{"algorithm": {}}', "config.json: there is no 'model' in it"),
        ("config.json", "{", "config.json: not JSON"),
        ("summary.json", '{"final": {}}', "summary.json: there is no 'facts'"),
        ("partition.json", "[]", "partition.json: there is no 'fingerprint' in it"),
        ("per_client.csv", "seed,name\n0,a\n", "per_client.csv: there is no column 'client'"),
    ],
)
def test_the_error_for_files_of_another_version_names_what_is_missing(tmp_path, name, text, said):
    folder = sample_runs.write_run(tmp_path / "run")
    (folder / name).write_text(text)
    with pytest.raises(InputError, match=said):
        read_run(folder)


def test_directories_without_a_run_are_refused(tmp_path):
    with pytest.raises(InputError, match=r"no config.json and no grid.json. Pass a directory"):
        read_runs([tmp_path])
    with pytest.raises(InputError, match="is not a directory"):
        read_runs([tmp_path / "none"])


def test_a_grid_is_read_by_its_cells_and_missing_runs_are_listed(tmp_path):
    for name in ("one", "two", "stale"):
        sample_runs.write_run(tmp_path / name)
    assert len(read_runs([tmp_path])[0]) == 3  # before compare has written its grid
    cells = [{"cell": name, "status": "done"} for name in ("two", "one")]
    sample_runs.write_json(
        tmp_path / "grid.json", [*cells, {"cell": "three", "status": "exit status 2: error: no data"}]
    )
    found, absent = read_runs([tmp_path, tmp_path / "one"])
    assert [run.directory.name for run in found] == ["two", "one"]
    assert absent == [MissingRun("three", "exit status 2: error: no data")]
    sample_runs.write_json(tmp_path / "grid.json", [{"cell": "three", "status": "failed"}])
    with pytest.raises(InputError, match="none of the runs has been started"):
        read_runs([tmp_path])


def labels(tmp_path, *changed):
    runs = [read_run(sample_runs.write_run(tmp_path / str(i), **options)) for i, options in enumerate(changed)]
    return [row.label for row in rows.make_rows(runs)]


def test_row_labels_use_the_fewest_distinguishing_settings(tmp_path):
    changed = [{}, {"algorithm": "fedld", "data__name": "cifar"}, {"rounds": 20, "algorithm__learning_rate": 0.5}]
    assert labels(tmp_path, *changed) == ["FedAvg learning_rate=0.1", "FedLD", "FedAvg learning_rate=0.5"]


def test_labels_of_equal_runs_include_their_directories(tmp_path):
    assert labels(tmp_path, {}, {}) == ["FedAvg (0)", "FedAvg (1)"]


def test_runs_over_left_out_domains_share_a_row(tmp_path):
    changed = [{"data__unseen": "photo"}, {"data__unseen": "sketch"}, {"algorithm": "fedbn", "data__unseen": "photo"}]
    assert labels(tmp_path, *changed) == ["FedAvg", "FedBN"]


def test_the_baseline_has_the_same_data_and_rounds(tmp_path):
    runs = [
        {},
        {"rounds": 20},
        {"algorithm": "fedld", "rounds": 20, "num_seeds": 5},
        {"algorithm": "fedld", "rounds": 7},
    ]
    found = rows.make_rows([read_run(sample_runs.write_run(tmp_path / str(i), **case)) for i, case in enumerate(runs)])
    bases = [rows.find_baseline(row, found, "fedavg") for row in found]
    assert bases == [None, None, found[1], None]


def test_among_several_baselines_the_one_with_equal_options_is_used(tmp_path):
    rates = [("fedavg", 0.5), ("fedavg", 0.1), ("fedld", 0.1)]
    runs = [
        read_run(
            sample_runs.write_run(tmp_path / str(i), name, algorithm__learning_rate=rate, data__path=f"/place/{i}")
        )
        for i, (name, rate) in enumerate(rates)
    ]
    found = rows.make_rows(runs)
    assert rows.find_baseline(found[2], found, "fedavg") is found[1]

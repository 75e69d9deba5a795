"""The GPU benchmark without a GPU: its timings, its file, and its errors."""

import json

import pytest

from experiments.benchmarks import gpu


@pytest.fixture
def list_tasks(monkeypatch):
    """Replace the tasks of the command."""
    return lambda *tasks: monkeypatch.setattr(gpu, "list_tasks", lambda is_tiny: tasks)


def read_records(path):
    return json.loads(path.read_text())["records"]


def fail():
    raise RuntimeError("out of memory\nmore")


def test_names_of_timings_are_unique_at_both_sizes():
    for is_tiny in (True, False):
        names = [(task.part, name) for task in gpu.list_tasks(is_tiny=is_tiny) for name in task.names]
        assert {part for part, _ in names} == {"rounds", "peers", "aggregators"}
        assert len(set(names)) == len(names)


def test_timings_are_appended_and_failures_recorded(tmp_path, list_tasks, capsys):
    path = tmp_path / "gpu.json"
    list_tasks(
        gpu.Task("rounds", ["a"], lambda: iter([{"name": "a", "median_s": 0.012344}])),
        gpu.Task("rounds", ["b"], fail),
    )
    assert gpu.main([f"--json={path}"]) == 1
    assert read_records(path) == [
        {"part": "rounds", "name": "a", "median_s": 0.012344},
        {"part": "rounds", "name": "b", "error": "RuntimeError: out of memory"},
    ]
    assert "| a | 0.01234 |  |" in capsys.readouterr().out
    list_tasks(
        gpu.Task("rounds", ["a"], fail),
        gpu.Task("peers", ["c", "d"], lambda: iter([{"name": "c"}, {"name": "d"}])),
    )
    assert gpu.main([f"--json={path}"]) == 1
    assert [record["name"] for record in read_records(path)] == ["a", "b", "c", "d"]


@pytest.mark.extended
def test_a_round_of_the_smallest_workload_is_timed():
    tasks = [task for task in gpu.list_tasks(is_tiny=True) if task.names[0].startswith("w3")]
    (record,) = tasks[0].run()
    assert record["name"] == tasks[0].names[0] == "w3-2x20, float32: vmapped, lax"
    assert 0 < record["min_s"] <= record["median_s"] <= record["max_s"] and record["rounds"] == gpu.ROUNDS


@pytest.mark.parametrize(
    ("path", "message"),
    [("/nowhere/at/all.json", "--json: cannot write"), ("other.json", "not written by this command")],
)
def test_input_errors_exit_with_status_2(tmp_path, monkeypatch, capsys, path, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "other.json").write_text("[]")
    assert gpu.main([f"--json={path}"]) == 2
    assert message in capsys.readouterr().err


def test_a_file_of_another_device_is_refused(tmp_path, capsys):
    path = tmp_path / "gpu.json"
    path.write_text(json.dumps({"about": {"device": "a card"}, "records": []}))
    assert gpu.main([f"--json={path}"]) == 2
    assert "was measured on 'a card'" in capsys.readouterr().err

"""Training of several runs in one program, and of one program after another in a process."""

import json
import os
import shutil
import signal
from pathlib import Path

import pytest

from fedjax_het.cli import compare, train
from fedjax_het.cli.configuration.config_files import find_config
from fedjax_het.cli.runs.records import MetricLines
from fedjax_het.cli.sweep import grid
from fedjax_het.cli.sweep.worker import Worker, train_group
from fedjax_het.cli.training.recorder import PICTURES

pytestmark = pytest.mark.extended

QUICK = find_config("quickstart")
SMALL = {
    "data.num_clients": "4",
    "cohort_size": "2",
    "rounds": "6",
    "evaluate_every": "2",
    "checkpoint_every": "2",
    "layout": "vmapped",
    "num_seeds": "2",
    "algorithm.name": "fedprox",
    "diagnostics": "norms",
    "diagnose_every": "4",
}


def write_runs_file(folder: Path, *overrides: dict[str, str]) -> Path:
    """RUNS.json for runs 0, 1, ... in this folder."""
    runs = [{"config": str(QUICK), "set": SMALL | x, "workdir": str(folder / str(i))} for i, x in enumerate(overrides)]
    folder.mkdir(exist_ok=True)
    (folder / "RUNS.json").write_text(json.dumps(runs))
    return folder / "RUNS.json"


def figures(run: Path) -> list[dict]:
    return [{k: v for k, v in line.items() if k != "seconds"} for line in MetricLines(run / "metrics.jsonl").read()]


def read_diagnostics(run: Path) -> list:
    return [line["norms"] for line in MetricLines(run / "diagnostics.jsonl").read()]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The folder of two runs of FedProx that were trained together."""
    folder = tmp_path_factory.mktemp("together")
    assert train_group(write_runs_file(folder, {"algorithm.mu": "0.01"}, {"algorithm.mu": "0.5", "seed": "3"})) == 0
    return folder


@pytest.mark.slow
def test_each_run_equals_the_run_trained_alone(trained, tmp_path):
    overrides = SMALL | {"algorithm.mu": "0.5", "seed": "3"}
    flags = [f"--config.{key}={text}" for key, text in overrides.items()]
    assert train.main([f"--config={QUICK}", f"--workdir={tmp_path / 'alone'}", *flags]) == 0
    alone, beside = figures(tmp_path / "alone"), figures(trained / "1")
    assert [line["seed"] for line in beside] == [3, 4] * 3
    for mine, other in zip(beside, alone, strict=True):
        assert mine == pytest.approx(other, rel=1e-4, abs=1e-5, nan_ok=True)
    for mine, other in zip(read_diagnostics(trained / "1"), read_diagnostics(tmp_path / "alone"), strict=True):
        assert {k: pytest.approx(v, rel=1e-3, abs=1e-5) for k, v in other.items()} == mine
    same = ("config.json", "partition.json")
    assert all((trained / "1" / name).read_text() == (tmp_path / "alone" / name).read_text() for name in same)
    files = {path.name for path in (tmp_path / "alone").iterdir()}
    assert files == {path.name for path in (trained / "1").iterdir()} | PICTURES.keys()


@pytest.mark.slow
def test_each_run_records_the_runs_of_its_program(trained):
    beside = [json.loads((trained / name / "resolved.json").read_text())["beside"] for name in "01"]
    assert beside == [["0", "1"], ["0", "1"]]
    assert figures(trained / "0")[-1]["train/loss"] != figures(trained / "1")[-1]["train/loss"]


def test_runs_that_need_another_program_are_refused(tmp_path, capsys):
    others = {"algorithm.name": "fedavg"}, {"rounds": "7"}
    for other in others:
        assert train_group(write_runs_file(tmp_path, {"algorithm.mu": "0.01"}, other)) == 2
        (key,) = other
        assert (
            f"error: these runs cannot be trained in one program (key: in the first / in another): config.{key}: "
            in (capsys.readouterr().err)
        )
    assert not (tmp_path / "0").exists()


@pytest.mark.slow
def test_killed_runs_resume_from_the_last_checkpoint_that_all_have(trained, tmp_path):
    folder = tmp_path / "again"
    for name in "01":
        shutil.copytree(trained / name, folder / name)
        (folder / name / "summary.json").unlink()
    shutil.rmtree(folder / "1" / "checkpoints" / "6")
    runs = {"algorithm.mu": "0.01"}, {"algorithm.mu": "0.5", "seed": "3"}
    assert train_group(write_runs_file(folder, *runs)) == 0
    for name in "01":
        assert figures(folder / name) == figures(trained / name)
        assert read_diagnostics(folder / name) == read_diagnostics(trained / name)
        assert (folder / name / "checkpoints" / "6").exists() and (folder / name / "summary.json").exists()


@pytest.mark.slow
def test_a_run_that_began_with_others_notes_it_when_resumed_alone(trained, tmp_path, capsys):
    shutil.copytree(trained / "0", tmp_path / "0")
    (tmp_path / "0" / "summary.json").unlink()
    assert train_group(write_runs_file(tmp_path, {"algorithm.mu": "0.01"})) == 0
    assert "together with other runs: its results are equal within rounding" in capsys.readouterr().out


@pytest.mark.slow
def test_another_config_in_the_directory_is_refused(trained, capsys):
    assert train_group(write_runs_file(trained, {"algorithm.mu": "0.7"})) == 2
    assert "holds a run of another config" in capsys.readouterr().err


def test_runs_that_differ_in_numbers_and_seeds_are_grouped():
    varied = {"algorithm.mu": ["0", "1"], "seed": ["0", "1"], "rounds": ["5", "6"]}
    found = grid.group_runs(grid.make_grid([QUICK], {"algorithm.name": "fedprox"}, varied), max_together=3)
    assert [len(group) for group in found] == [3, 1, 3, 1]
    assert len({cell.settings()["rounds"] for cell in found[0]}) == 1
    names = grid.make_grid([QUICK], {}, {"algorithm.name": ["fedavg", "fedprox"]})
    assert [len(group) for group in grid.group_runs(names, max_together=8)] == [1, 1]
    switches = grid.make_grid([QUICK], {"algorithm.name": "fedld"}, {"algorithm.principal": ["True", "False"]})
    assert [len(group) for group in grid.group_runs(switches, max_together=8)] == [1, 1]
    counts = grid.make_grid([QUICK], {}, {"algorithm.epochs": ["1", "2"]})
    assert [len(group) for group in grid.group_runs(counts, max_together=8)] == [1, 1]


@pytest.mark.parametrize(
    ("flag", "message"),
    [
        ("--together=0", "--together=0: must be at least 1"),
        ("--jobs=0", "--jobs=0: must be from 1 to "),
        ("--jobs=9999", "the number of cores"),
    ],
)
def test_impossible_numbers_of_runs_at_a_time_are_refused(flag, message, tmp_path, capsys):
    assert compare.main([f"--config={QUICK}", flag, f"--workdir={tmp_path}"]) == 2
    assert message in capsys.readouterr().err


# ---- processes -------------------------------------------------------------------------------------------------------
@pytest.fixture
def worker():
    worker = Worker(sorted(os.sched_getaffinity(0)))
    yield worker
    worker.stop()


def find_pid(worker: Worker) -> int:
    return worker._running[0].pid


def test_groups_are_trained_in_one_process_with_a_log_each(worker, tmp_path):
    pids = set()
    for name, rounds in {"a": "6", "b": "8"}.items():
        log = tmp_path / f"{name}.log"
        worker.start(write_runs_file(tmp_path / name, {"rounds": rounds}), log, "vmapped")
        pids.add(find_pid(worker))
        assert worker.wait(100) == 0
        assert (tmp_path / name / "0" / "summary.json").exists()
        assert f"round {rounds}/{rounds}  train/loss" in log.read_text()
    assert len(pids) == 1
    worker.start(write_runs_file(tmp_path / "c", {"rounds": "many"}), tmp_path / "c.log", "chunked(1)")
    assert find_pid(worker) not in pids


def test_a_process_that_fails_or_is_killed_is_replaced(worker, tmp_path):
    runs_file, log = write_runs_file(tmp_path / "runs", {"rounds": "many"}), tmp_path / "log"
    worker.start(runs_file, log, "vmapped")
    failed = find_pid(worker)
    assert worker.wait(100) == 2
    assert "--config.rounds: expected int" in log.read_text()
    worker.start(runs_file, log, "vmapped")
    killed = find_pid(worker)
    assert killed != failed
    os.kill(killed, signal.SIGKILL)
    assert worker.wait(100) == -signal.SIGKILL
    worker.start(runs_file, log, "vmapped")
    assert find_pid(worker) != killed

"""Processes that train one group of runs after another."""

import json
import os
import signal
from pathlib import Path

import pytest

from fedjax_het.cli.configuration.config_files import find_config
from fedjax_het.cli.sweep.worker import Worker

SMALL = {"data.num_clients": "4", "cohort_size": "2", "rounds": "2", "evaluate_every": "2", "layout": "vmapped"}


@pytest.fixture
def worker():
    worker = Worker(sorted(os.sched_getaffinity(0)))
    yield worker
    worker.stop()


def write_runs_file(folder: Path, **overrides: str) -> Path:
    """RUNS.json for a run in a folder."""
    run = {"config": str(find_config("quickstart")), "set": SMALL | overrides, "workdir": str(folder / "run")}
    folder.mkdir()
    (folder / "RUNS.json").write_text(json.dumps([run]))
    return folder / "RUNS.json"


def find_pid(worker: Worker) -> int:
    return worker._running[0].pid


@pytest.mark.extended
def test_groups_are_trained_in_one_process_with_a_log_each(worker, tmp_path):
    pids = set()
    for name, rounds in {"a": "2", "b": "3"}.items():
        worker.start(write_runs_file(tmp_path / name, rounds=rounds), tmp_path / name / "log", "vmapped")
        pids.add(find_pid(worker))
        assert worker.wait(100) == 0
        assert (tmp_path / name / "run" / "summary.json").exists()
        assert f"round {rounds}/{rounds}  train/loss" in (tmp_path / name / "log").read_text()
    assert len(pids) == 1
    worker.start(write_runs_file(tmp_path / "c", rounds="many"), tmp_path / "c" / "log", "chunked(1)")
    assert find_pid(worker) not in pids


def test_a_process_that_fails_or_is_killed_is_replaced(worker, tmp_path):
    runs_file, log = write_runs_file(tmp_path / "runs", rounds="many"), tmp_path / "log"
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

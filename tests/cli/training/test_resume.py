"""Resumption of runs that are killed with SIGKILL: the results are equal bit for bit."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import jax
import numpy as np
import orbax.checkpoint as ocp
import pytest

from fedjax_het.algorithms import ALGORITHMS
from fedjax_het.cli.runs.records import MetricLines
from fedjax_het.cli.runs.run_directory import RunDirectory
from tests.harness import CAPACITIES, CLIP, OWN, PROMPTS, make_prompts
from tests.shared import ROOT

SMALL = {
    "rounds": "24",
    "evaluate_every": "1",
    "checkpoint_every": "4",
    "data.num_clients": "6",
    "cohort_size": "3",
    "layout": "vmapped",  # two runs must have the same layout
    "num_seeds": "2",
    "data.partition.name": "dirichlet",
    "data.partition.alpha": "0.5",
    "model.hidden": "8,",
}


def start(workdir: Path, overrides: dict[str, str], uplink: Sequence[dict] = ()) -> subprocess.Popen:
    config = workdir.parent / "config.py"
    config.write_text(f"def get_config():\n    return {{'uplink': {list(uplink)}}}\n")
    command = [sys.executable, "-m", "fedjax_het.cli.train", f"--config={config}", f"--workdir={workdir}"]
    command += [f"--config.{key}={value}" for key, value in overrides.items()]
    # The compiled programs of the first run serve the others.
    environment = os.environ | {
        "JAX_COMPILATION_CACHE_DIR": str(workdir.parent / "cache"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    }
    return subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def finish(process: subprocess.Popen) -> None:
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 0, output.decode()


def kill_after(process: subprocess.Popen, workdir: Path, round: int, seconds: float = 0.0) -> None:
    """Kill the process this number of seconds after the metrics of this round appear."""
    log = MetricLines(workdir / "metrics.jsonl")
    while process.poll() is None and not any(line["round"] >= round for line in log.read()):
        time.sleep(0.002)
    time.sleep(seconds)
    process.send_signal(signal.SIGKILL)
    output, _ = process.communicate()
    assert process.returncode == -signal.SIGKILL, f"it ended before it could be killed:\n{output.decode()}"


def final_state(workdir: Path) -> dict[str, np.ndarray]:
    """Every leaf of the last checkpoint, by path, whatever devices it was written from."""
    rounds = RunDirectory(workdir).read("config.json")["rounds"]
    folder = (workdir / "checkpoints" / str(rounds) / "state").absolute()
    with ocp.PyTreeCheckpointer() as reader:
        leaves = reader.metadata(folder).item_metadata.tree
        in_numpy = jax.tree.map(lambda _: ocp.RestoreArgs(restore_type=np.ndarray), leaves)
        tree = reader.restore(folder, restore_args=in_numpy)
    return {jax.tree_util.keystr(path): np.asarray(leaf) for path, leaf in jax.tree.leaves_with_path(tree)}


def lines(workdir: Path) -> list[dict]:
    return [line | {"seconds": None} for line in MetricLines(workdir / "metrics.jsonl").read()]


def check_kill_and_resume(
    tmp_path: Path, overrides: dict[str, str], kills: Sequence[tuple[int, float]], uplink: Sequence[dict] = ()
) -> None:
    """Run once to the end and once with a SIGKILL at every (round, seconds later); compare everything but times."""
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    finish(start(whole, overrides, uplink))
    for round, seconds in kills:
        kill_after(start(broken, overrides, uplink), broken, round, seconds)
        assert not (broken / "summary.json").exists()
    finish(start(broken, overrides, uplink))
    assert lines(broken) == lines(whole) and len(lines(whole)) > 0
    assert (broken / "per_client.csv").read_bytes() == (whole / "per_client.csv").read_bytes()
    assert RunDirectory(broken).read("summary.json")["final"] == RunDirectory(whole).read("summary.json")["final"]
    resumed, expected = final_state(broken), final_state(whole)
    assert resumed.keys() == expected.keys() and len(expected) > 0
    for path, leaf in expected.items():
        np.testing.assert_array_equal(resumed[path], leaf, err_msg=path)


@pytest.mark.extended
def test_a_killed_run_resumes_bit_for_bit(tmp_path):
    check_kill_and_resume(tmp_path, SMALL | {"num_seeds": "1", "model.hidden": "()"}, kills=[(10, 0.0)])


@pytest.mark.slow
@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_algorithm_resumes_after_being_killed_several_times(tmp_path, name):
    kills = [(1, 0.0), (4, 0.0), (4, 0.02), (9, 0.005), (15, 0.05), (20, 0.01)]
    network = {"model.hidden": SMALL["model.hidden"], "model.norm": "batch"}  # FedBN needs norms to keep
    if name in CAPACITIES:
        network["model.norm"] = "none"
    if name in PROMPTS:
        network = {"model.name": "clip", "model.prompts": str(make_prompts(10))}
        network |= {f"model.{option}": str(value) for option, value in CLIP.items()}
        network |= {f"algorithm.{option}": str(value) for option, value in OWN[name].items()}
    if name in ("feddf", "fedmd"):
        network |= {"data.public.name": "held_out"}
        network |= {f"algorithm.{option}": str(value) for option, value in OWN[name].items()}
    others = {setting: value for setting, value in SMALL.items() if setting != "model.hidden"}
    check_kill_and_resume(tmp_path, others | network | {"rounds": "60", "algorithm.name": name}, kills)


@pytest.mark.slow
def test_a_private_run_resumes_with_its_noise_bound_and_epsilon(tmp_path):
    private = {
        "cohort_size": "0",
        "participation.name": "poisson",
        "participation.probability": "0.5",
        "algorithm.weighting": "uniform",
        "privacy.epsilon": "8",
        "privacy.delta": "0.01",
        "privacy.accountant": "rdp",
    }
    mechanism = {"name": "gaussian_mechanism", "norm": 0.5, "target_quantile": 0.5, "count_noise": 2.0}
    check_kill_and_resume(tmp_path, SMALL | private, [(5, 0.0), (13, 0.01)], [mechanism])
    spent = [line["privacy/epsilon"] for line in lines(tmp_path / "broken")]
    assert spent == sorted(spent) and spent[-1] == pytest.approx(8, rel=1e-3)


@pytest.mark.slow
def test_a_run_with_correlated_noise_and_private_examples_resumes_with_both_while_it_streams(tmp_path):
    """The checkpoint has the earlier noise, and when each client was drawn last."""
    private = {
        "cohort_size": "1",
        "participation.name": "waiting",
        "participation.separation": "3",
        "algorithm.weighting": "uniform",
        "algorithm.steps": "2",
        "algorithm.epochs": "none",
        "record_privacy.norm": "1.0",
        "record_privacy.target_epsilon": "5",
        "record_privacy.delta": "0.001",
        "record_privacy.accountant": "rdp",
        "privacy.epsilon": "8",
        "privacy.delta": "0.01",
        "privacy.accountant": "rdp",
        "examples": "stream",
        "client_states": "host",
    }
    mechanism = {"name": "matrix_mechanism", "norm": 0.5, "separation": 3, "strategy": "buffered"}
    check_kill_and_resume(tmp_path, SMALL | private, [(5, 0.0), (13, 0.01)], [mechanism])


@pytest.mark.slow
def test_a_killed_run_with_error_feedback_resumes_bit_for_bit(tmp_path):
    """The checkpoint has the clients' compression errors and the server's mean of EF21."""
    stages = [{"name": "quantize", "rotated": True, "feedback": "classic"}, {"name": "top_k", "feedback": "ef21"}]
    options = {"algorithm.weighting": "uniform", "uplink.1.fraction": "0.1"}
    check_kill_and_resume(tmp_path, SMALL | options, kills=[(5, 0.0), (13, 0.01)], uplink=stages)


@pytest.mark.slow
def test_a_killed_asynchronous_run_resumes_bit_for_bit(tmp_path):
    options = {"algorithm.name": "scaffold", "cohort_size": "1", "timing.name": "log_normal"}
    options |= {"asynchronous.name": "fedbuff", "asynchronous.concurrency": "4", "asynchronous.buffer_size": "2"}
    check_kill_and_resume(tmp_path, SMALL | options, kills=[(5, 0.0), (13, 0.01)])


@pytest.mark.slow
def test_a_killed_streaming_run_resumes_bit_for_bit(tmp_path):
    """FedBN's personal models, see per_client.csv, are in the store."""
    elsewhere = {"algorithm.name": "fedbn", "model.norm": "batch", "client_states": "disk", "examples": "stream"}
    check_kill_and_resume(tmp_path, SMALL | elsewhere, kills=[(3, 0.0), (10, 0.005), (17, 0.02)])


@pytest.mark.slow
def test_a_killed_run_with_convolutions_resumes_bit_for_bit(tmp_path):
    """The bits of convolutions and Gram matrices do not depend on choices that may differ between processes."""
    network = {"model.name": "cnn", "model.channels": "4,8", "model.kernel": "3"}
    check_kill_and_resume(tmp_path, SMALL | network | {"algorithm.name": "fedld"}, kills=[(5, 0.0), (13, 0.01)])


@pytest.mark.slow
def test_a_killed_run_on_changing_data_resumes_bit_for_bit(tmp_path):
    """The data of a round are a function of the round; nothing about them is in the checkpoint."""
    changing = {"data.test_fraction": "0", "data.drift.name": "incremental", "data.drift.start": "4"}
    changing |= {"data.drift.width": "8", "data.drift.stagger": "6", "data.concepts.name": "noisy"}
    elsewhere = {"algorithm.name": "fedbn", "model.norm": "batch", "examples": "stream"}
    check_kill_and_resume(tmp_path, SMALL | changing | elsewhere, kills=[(5, 0.0), (13, 0.01)])

"""Initialization of several processes: their flags, and errors where config, data or directories differ."""

import runpy
import socket
import sys

import jax
import numpy as np
import pytest

from fedjax_het.cli import train
from fedjax_het.cli.distributed import collectives, initialization
from fedjax_het.cli.distributed.initialization import DistributedConfig
from fedjax_het.errors import InputError
from tests.cli.distributed.launcher import (
    common_error,
    free_port,
    start,
    train_arguments,
    train_together,
    wait_for_all,
    write_inputs,
)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return write_inputs(tmp_path_factory.mktemp("processes"))


# ---- what is found ---------------------------------------------------------------------------------------------------
@pytest.mark.slow
def test_a_slurm_job_is_detected(place, tmp_path):
    job = {"SLURM_JOB_ID": "1", "SLURM_STEP_NODELIST": "127.0.0.1", "SLURM_NTASKS": "2"}
    job["JAX_COORDINATOR_PORT"] = str(free_port())
    own = [*train_arguments(place, tmp_path, {}), "--distributed"]
    tasks = [start(place, own, SLURM_PROCID=rank, SLURM_LOCALID=rank, **job) for rank in ("0", "1")]
    (status, printed, errors), (other, _, _) = wait_for_all(tasks)
    assert status == other == 0 and "sharded(2" in printed, errors


def test_a_jax_without_its_private_client_trains_in_a_single_process_and_refuses_several(monkeypatch):
    monkeypatch.setitem(sys.modules, "jax._src.distributed", None)
    assert runpy.run_path(collectives.__file__)["global_state"] is None
    monkeypatch.setattr(initialization, "global_state", None)
    assert initialization.initialize(DistributedConfig()) is collectives.SINGLE
    with pytest.raises(InputError, match="several processes are not supported with JAX"):
        initialization.initialize(DistributedConfig("127.0.0.1:1234", 2, 0))


# ---- what is refused -------------------------------------------------------------------------------------------------
@pytest.mark.slow
def test_an_input_error_of_one_process_is_printed_once_and_ends_both(place, tmp_path):
    own = train_arguments(place, tmp_path / "run", {"data.path": "examples.npz"})
    assert common_error(place, own, [place, tmp_path]).startswith("error: process 1 of 2: config.data.path: ")
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_other_data_under_the_same_path_are_refused(place, tmp_path):
    with np.load(place / "examples.npz") as found:
        np.savez(tmp_path / "examples.npz", images=found["images"], labels=found["labels"][::-1])
    own = train_arguments(place, tmp_path / "run", {"data.path": "examples.npz"})
    assert "process 1 has another partition than process 0" in common_error(place, own, [place, tmp_path])


@pytest.mark.slow
def test_another_config_under_the_same_path_is_refused(place, tmp_path):
    (tmp_path / "config.py").write_text("def get_config():\n    return {'seed': 1}\n")
    own = ["--config=config.py", *train_arguments(place, tmp_path / "run", {})[1:]]
    assert "config.seed: 0 / 1" in common_error(place, own, [place, tmp_path])


@pytest.mark.slow
def test_a_workdir_that_is_not_shared_is_refused(place, tmp_path):
    message = common_error(place, [*train_arguments(place, tmp_path, {}), "--workdir=run"], [place, tmp_path])
    assert "'run' is not the same directory for all processes" in message


@pytest.mark.slow
def test_the_error_for_a_damaged_checkpoint_says_how_to_resume(place, tmp_path):
    own = train_arguments(place, tmp_path, {})
    train_together(place, 2, own)
    (tmp_path / "summary.json").unlink()
    for path in (tmp_path / "checkpoints" / "8" / "state").rglob("*"):
        if path.is_file() and path.stat().st_size > 8:
            path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    message = common_error(place, own)
    assert "checkpoints/8: the checkpoint is damaged" in message
    assert "Delete it: the run resumes from checkpoint 6" in message


def as_one_of_two(index: int) -> list[str]:
    return [f"--coordinator=127.0.0.1:{free_port()}", "--num_processes=2", f"--process_id={index}"]


@pytest.mark.slow
def test_a_coordinator_that_does_not_answer_is_named(place, tmp_path, capsys):
    flags = [*as_one_of_two(1), "--initialization_timeout=5"]
    assert train.main([*train_arguments(place, tmp_path, {}), *flags]) == 2
    assert "--coordinator: no answer from 127.0.0.1:" in capsys.readouterr().err


@pytest.mark.slow
def test_distributed_without_a_job_is_refused(place, tmp_path):
    [(status, _, errors)] = wait_for_all([start(place, [*train_arguments(place, tmp_path, {}), "--distributed"])], 60)
    assert status == 2 and errors.startswith("error: --distributed: JAX finds no job to join")


@pytest.mark.slow
def test_a_process_that_does_not_start_in_time_ends_the_others(place, tmp_path):
    flags = [*as_one_of_two(0), "--initialization_timeout=5"]
    [(status, _, errors)] = wait_for_all([start(place, train_arguments(place, tmp_path, {}), *flags)], 60)
    assert status == 2 and "not all processes started within 5 s" in errors.splitlines()[-1]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--coordinator=a:1"], "--coordinator needs --num_processes and --process_id"),
        (["--num_processes=2", "--process_id=0"], "--num_processes needs --coordinator"),
        (["--coordinator=a:1", "--num_processes=2", "--process_id=2"], "--process_id: 0 to 1"),
        (["--coordinator=a:1", "--num_processes=2", "--process_id=-1"], "--process_id: 0 to 1"),
        (["--coordinator=a:1", "--num_processes=0", "--process_id=0"], "--num_processes: at least 1"),
        (["--coordinator=a", "--num_processes=2", "--process_id=0"], "--coordinator: HOST:PORT"),
        (["--coordinator=a:12²", "--num_processes=2", "--process_id=0"], "--coordinator: HOST:PORT"),
        (["--coordinator=a:0", "--num_processes=2", "--process_id=0"], "--coordinator: HOST:PORT"),
        (["--distributed", "--process_id=0"], "--distributed detects the value"),
        (["--distributed", "--heartbeat_timeout=1"], "--heartbeat_timeout: at least 5"),
    ],
)
def test_flags_that_contradict_each_other_are_refused(flags, message):
    with pytest.raises(InputError, match=message):
        train.parse(["--config=a.py", *flags])


def test_a_port_in_use_is_named(place, tmp_path, capsys):
    with socket.create_server(("", 0)) as server:
        port = server.getsockname()[1]
        flags = [f"--coordinator=localhost:{port}", "--num_processes=2", "--process_id=0"]
        assert train.main([*train_arguments(place, tmp_path / "run", {}), *flags]) == 2
    assert f"port {port} of this host is taken" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("host", "bind", "printed"),
    [
        ("127.0.0.1", "127.0.0.1", "127.0.0.1"),
        ("localhost", "127.0.0.1", "127.0.0.1"),
        ("[::1]", "[::1]", "::1"),
        ("node0", "[::]", "all interfaces"),
    ],
)
def test_process_0_listens_on_the_address_that_was_given_and_for_a_name_on_all(
    monkeypatch, capsys, host, bind, printed
):
    class ListenedError(Exception):
        pass

    def listen(*_, coordinator_bind_address, **__):
        raise ListenedError(coordinator_bind_address)

    monkeypatch.setattr(initialization, "_set_abort_message", lambda *_: None)
    monkeypatch.setattr(jax.distributed, "initialize", listen)
    preemption, port = jax.config.jax_enable_preemption_service, free_port()
    try:
        with pytest.raises(ListenedError) as raised:
            initialization.initialize(DistributedConfig(f"{host}:{port}", 2, 0))
    finally:
        jax.config.update("jax_enable_preemption_service", preemption)
    assert str(raised.value) == f"{bind}:{port}"
    assert f"process 0 of 2: listening on {printed}, port {port}\n" in capsys.readouterr().out


def test_an_address_of_another_host_is_refused_by_process_0():
    with pytest.raises(InputError, match=r"192\.0\.2\.1 is not an address of this host"):
        initialization.initialize(DistributedConfig("192.0.2.1:1234", 2, 0))

"""Launching of processes that train together on this machine, with one CPU device each."""

import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from tests.shared import ROOT

SMALL = {
    "rounds": "8",
    "evaluate_every": "2",
    "checkpoint_every": "2",
    "cohort_size": "3",
    "data.name": "arrays",
    "data.num_clients": "5",
    "data.client_test_fraction": "0.2",
    "data.partition.name": "dirichlet",
    "data.partition.alpha": "0.5",
    "model.hidden": "8,",
    "algorithm.batch_size": "8",
}


def write_inputs(folder: Path) -> Path:
    """Write a config and examples; compiled programs are cached there too."""
    (folder / "config.py").write_text("def get_config():\n    return {}\n")
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 3, 240)
    images = np.clip(80 * labels[:, None, None] + rng.normal(0, 60, (240, 6, 6)), 0, 255).astype(np.uint8)
    np.savez(folder / "examples.npz", images=images, labels=labels)
    return folder


def train_arguments(place: Path, workdir: Path, overrides: dict[str, str]) -> list[str]:
    values = SMALL | {"data.path": str(place / "examples.npz")} | overrides
    return [
        f"--config={place / 'config.py'}",
        f"--workdir={workdir}",
        *(f"--config.{key}={value}" for key, value in values.items()),
    ]


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def start(place: Path, own_arguments: list[str], *flags: str, cwd: Path = ROOT, **more: str) -> subprocess.Popen:
    environment = (
        os.environ
        | more
        | {
            "PYTHONPATH": str(ROOT),
            "JAX_PLATFORMS": "cpu",
            "JAX_COMPILATION_CACHE_DIR": str(place / "cache"),
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        }
    )
    command = [sys.executable, "-m", "fedjax_het.cli.train", *own_arguments, "--heartbeat_timeout=10", *flags]
    return subprocess.Popen(
        command, cwd=cwd, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def start_together(
    place: Path, count: int, own_arguments: list[str], cwds: Sequence[Path] = ()
) -> list[subprocess.Popen]:
    """`count` processes with the same arguments, in working directories of their own if there are any."""
    common = f"--coordinator=127.0.0.1:{free_port()}", f"--num_processes={count}"
    return [
        start(place, own_arguments, *common, f"--process_id={index}", cwd=cwd)
        for index, cwd in enumerate(cwds or [ROOT] * count)
    ]


def wait_for_all(processes: list[subprocess.Popen], seconds: float = 300) -> list[tuple[int, str, str]]:
    """(exit status, output, errors) of each. After `seconds`, a running process is killed and the test fails."""
    try:
        streams = [process.communicate(timeout=seconds) for process in processes]
        return [(process.returncode, *output) for process, output in zip(processes, streams, strict=True)]
    finally:
        for process in processes:
            process.kill()


def train_together(place: Path, count: int, own_arguments: list[str]) -> list[tuple[int, str, str]]:
    done = wait_for_all(start_together(place, count, own_arguments))
    assert [status for status, _, _ in done] == [0] * count, done
    return done


def common_error(place: Path, own_arguments: list[str], cwds: Sequence[Path] = ()) -> str:
    """The message that the first of two processes prints for both before they end; the second prints nothing."""
    first, second = wait_for_all(start_together(place, 2, own_arguments, cwds), 120)
    assert first[0] == second[0] == 2 and first[2].startswith("error: ") and not second[2], (first, second)
    return first[2]

"""Compiled programs that are kept for other processes."""

import subprocess
import sys

import pytest

from fedjax_het.cli import module_environment

SCRIPT = """
import sys
import jax
import fedjax_het as fh

loaded = []
jax.monitoring.register_event_listener(lambda name, **_: name.endswith("/cache_hits") and loaded.append(name))
federation = fh.data.federate(fh.data.load("digits"), fh.data.iid(), num_clients=4)
rates = fh.Sweep(fh.algorithms.fedavg, {"learning_rate": [float(sys.argv[1])]})
fh.Simulation(rates, fh.models.mlp(10), federation, rounds=2, cohort_size=2, seed=int(sys.argv[2]))
print(jax.config.jax_compilation_cache_dir, len(loaded))
"""


@pytest.mark.slow
def test_python_keeps_programs_that_another_learning_rate_and_seed_use(tmp_path):
    environment = {**module_environment(), "XDG_CACHE_HOME": str(tmp_path)}
    environment.pop("JAX_COMPILATION_CACHE_DIR", None)

    def compile(*arguments: str) -> list[str]:
        command = [sys.executable, "-c", SCRIPT, *arguments]
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.split()

    folder = tmp_path / "fedjax_het" / "programs"
    assert compile("0.1", "0") == [str(folder), "0"]
    kept = {path.name for path in folder.glob("*-cache")}
    assert kept and compile("0.2", "1") == [str(folder), str(len(kept))]
    assert {path.name for path in folder.glob("*-cache")} == kept

"""Every round and evaluation lowers for GPUs, and compiles for TPUs and GPUs that are not present."""

import importlib.util
import json
import os
import subprocess
import sys

import jax
import pytest

from experiments.benchmarks import compile
from experiments.benchmarks.targets import LAYOUTS, find_target
from fedjax_het.algorithms import ALGORITHMS
from fedjax_het.errors import InputError
from tests.shared import ROOT

HASH_PROGRAMS = """
import hashlib
from experiments.benchmarks.compile import run_programs, trace
from fedjax_het._internal.target_platform import tracing_for
from fedjax_het.engine.parallel.layout import vmapped

for platform, lowered_for in (("tpu", "tpu"), ("gpu", "cuda"), ("cpu", "cpu")):
    with tracing_for(platform):
        programs = run_programs(trace("fedld", "mlp", vmapped))
        for program in programs.values():
            lowered = program.function.trace(*program.arguments).lower(lowering_platforms=(lowered_for,))
            print(hashlib.sha256(lowered.as_text().encode()).hexdigest())
programs["evaluation"].compile()
"""
needs_tpu_compiler = pytest.mark.skipif(
    importlib.util.find_spec("libtpu") is None, reason="no compiler for TPUs: install fedjax_het[tpu]"
)
needs_gpu_compiler = pytest.mark.skipif(
    not any(map(importlib.util.find_spec, ("jax_cuda12_plugin", "jax_cuda13_plugin"))),
    reason="no compiler for GPUs: install fedjax_het[cuda13]",
)
ONE_CHIP = [pytest.param("v5e:1x1", marks=needs_tpu_compiler), pytest.param("h100:1", marks=needs_gpu_compiler)]
FOUR_CHIPS = [pytest.param("v5e:2x2", marks=needs_tpu_compiler), pytest.param("h100:4", marks=needs_gpu_compiler)]


def check(rows, result):
    for row in rows:
        assert row["result"] == result or row["result"].startswith("refused: "), row
    return rows


@pytest.mark.extended
@pytest.mark.parametrize("algorithm", ["fedavg", "fedld", "harmofl"])
def test_rounds_lower_for_gpus_without_calls_that_only_cpus_have(algorithm):
    check(compile.compile_case(algorithm, "mlp", "vmapped", find_target("cuda")), "lowered")


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_every_algorithm_lowers_for_gpus(algorithm):
    for layout in LAYOUTS:
        check(compile.compile_case(algorithm, "mlp", layout, find_target("cuda")), "lowered")


@pytest.mark.slow
@pytest.mark.parametrize("model", compile.PROBLEMS)
@pytest.mark.parametrize("algorithm", ["fedavg", "fedld", "harmofl"])
def test_every_model_lowers_for_gpus(algorithm, model):
    check(compile.compile_case(algorithm, model, "vmapped", find_target("cuda")), "lowered")


@pytest.mark.slow
def test_another_process_finds_the_same_programs_in_the_compilation_cache(tmp_path):
    """Keys are functions of the lowered programs; a cache needs a TPU or GPU, which is not present here."""
    outputs, cached = [], []
    for seed in "12":
        environment = os.environ | {
            "PYTHONHASHSEED": seed,
            "JAX_COMPILATION_CACHE_DIR": str(tmp_path),
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        }
        command = [sys.executable, "-c", HASH_PROGRAMS]
        outputs.append(subprocess.run(command, cwd=ROOT, env=environment, check=True, capture_output=True).stdout)
        cached.append({path.name for path in tmp_path.glob("*-cache")})
    assert len(outputs[0].split()) == 12
    assert outputs[0] == outputs[1]
    assert cached[0]
    assert cached[0] == cached[1]


def test_a_call_of_the_host_is_a_failure():
    text = jax.jit(lambda x: jax.pure_callback(lambda x: x, x, x)).lower(1.0).as_text()
    with pytest.raises(compile.HostCallError, match="callback"):
        compile._list_custom_calls(text)


def compile_apart(tmp_path, topology, *choices):
    """The records of the command in a separate process, which frees the gigabytes that some compilations take.

    In this process, JAX may also have no GPU platform.
    """
    path = tmp_path / "compile.json"
    command = [sys.executable, "-m", "experiments.benchmarks.compile", f"--topology={topology}", f"--json={path}"]
    ended = subprocess.run([*command, *choices], cwd=ROOT, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stdout + ended.stderr[-2000:]
    rows = check(json.loads(path.read_text())["records"], "compiled")
    assert not topology.startswith("v5e") or not any(row.get("float64") for row in rows)  # TPUs emulate float64
    return rows


@pytest.mark.parametrize("topology", ONE_CHIP)
def test_rounds_and_evaluation_compile(topology, tmp_path):
    programs = compile_apart(tmp_path, topology, "--algorithms=fedavg")
    assert [program["program"] for program in programs] == ["rounds", "gather", "scatter", "evaluation"]
    for program in programs[::3]:
        assert topology.startswith("h100") or program["gflop"] > 0
        assert program["argument_mb"] > 10_000 * 28 * 28 / 1e6  # the images alone, in bytes


@pytest.mark.slow
@pytest.mark.parametrize("topology", FOUR_CHIPS)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_every_algorithm_compiles_for_four_chips(algorithm, topology, tmp_path):
    compile_apart(tmp_path, topology, f"--algorithms={algorithm}", "--layouts=all")


@pytest.mark.slow
@pytest.mark.parametrize("topology", ONE_CHIP)
@pytest.mark.parametrize("model", compile.PROBLEMS)
@pytest.mark.parametrize("algorithm", ["fedavg", "fedld", "harmofl"])
def test_every_model_compiles(algorithm, model, topology, tmp_path):
    compile_apart(tmp_path, topology, f"--algorithms={algorithm}", f"--models={model}")


@pytest.mark.extended
def test_programs_that_the_file_lists_are_skipped(tmp_path, capsys, monkeypatch):
    command = ["--topology=cuda", "--algorithms=fedavg", "--models=mlp", f"--json={tmp_path / 'compile.json'}"]
    assert compile.main(command) == 0
    records = json.loads((tmp_path / "compile.json").read_text())["records"]
    assert [record["program"] for record in records] == ["rounds", "gather", "scatter", "evaluation"]
    monkeypatch.setattr(compile, "compile_case", None)
    assert compile.main(command) == 0
    assert "| fedavg | mlp | vmapped | rounds | lowered |" in capsys.readouterr().out


@pytest.mark.parametrize("topology", ["h100", "h100:", "h100:0", "h100:2x2", "b17:1"])
def test_an_unknown_topology_is_refused_with_valid_ones(topology):
    with pytest.raises(InputError, match="Write a TPU slice such as v5e:2x2, a number of H100 GPUs such as h100:4"):
        find_target(topology)


@pytest.mark.parametrize(("topology", "extra"), [("v5e:1x1", "tpu"), ("h100:1", "cuda13")])
def test_a_missing_compiler_is_named_with_the_command_that_installs_it(topology, extra, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(InputError, match=rf'pip install "fedjax-het\[{extra}\]"'):
        find_target(topology)


def test_an_unknown_algorithm_is_refused_with_the_nearest(capsys):
    assert compile.main(["--algorithms=fedavgg"]) == 2
    assert "Did you mean 'fedavg'" in capsys.readouterr().err

"""Compilation for accelerators that are not there, and what a round would cost on them, or for this machine's CPU:

    python -m experiments.benchmarks.compile --topology=v5e:2x2 --algorithms=all --models=mlp,cnn --json=compile.json

Compiles the rounds and the evaluation of a run for a TPU topology, such as v5e:1x1 or v5e:2x2, with the compiler of the
extra `tpu`, or for GPUs, such as h100:1 or h100:4, with that of the extra `cuda12`. The process itself computes on the
CPU. --platform=cuda without a topology lowers the programs for GPUs, and needs no extra; --platform=cpu compiles them
for this machine, in layouts of one device.
Each program is a row of the table: seconds to trace and to compile, those of all cores together in compiling, the
instructions of the compiled program, bytes of arguments and temporary arrays on each device, FLOP, bytes and operations
of one round with loops multiplied out, bytes of collectives, operations in float64, custom calls, and an estimate of a
round's seconds from the peak rates of the chip; the last seven not for CPUs, where kernels of ours compute. For a GPU
that is not there, kernels are chosen without timing them, and the room that cuDNN needs is not counted. Rows are
written to --json as they come, and what is in that file is not compiled again. No program is taken from a cache.
--effort=-1 shows soonest whether the compiler accepts a program; its other figures are those of a slower one.
Exit status: 0 = all compiled, or were refused for a stated reason, 1 = some failed, 2 = an input error.
"""

import argparse
import itertools
import os
import re
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import numpy as np
from absl.flags import argparse_flags

import fedjax_het as fh
from fedjax_het._internal.target_platform import tracing_for
from fedjax_het.algorithms import ALGORITHMS
from fedjax_het.engine.execution.programs import Program, RunPrograms
from fedjax_het.engine.execution.run_spec import RunSpec
from fedjax_het.engine.execution.trace import TracedRound, trace_round
from fedjax_het.engine.parallel.layout import Layout
from fedjax_het.engine.parallel.runs import Sweep
from fedjax_het.errors import InputError
from fedjax_het.models import MODELS

from ..configuration.command_line import with_exit_status
from ..runs.setting_text import select_names
from .costs import Costs, count_costs
from .figure_file import FigureFile, Record, format_table
from .hlo import count_instructions
from .rounds import check_json_path
from .targets import DEFAULT_TOPOLOGIES, LAYOUTS, Target, estimate_seconds, find_target, first_line, platform_of

CLIENTS, COHORT, EXAMPLES, BATCH = 100, 8, 100, 20  # clients, clients per round, examples per client, batch size
ALPHABET = 80  # characters of a text
PROGRAMS = ("rounds", "evaluation")

_SHARDING_CALLS = {"Sharding", "SPMDFullToShardShape", "SPMDShardToFullShape"}
_HOST_CALL = re.compile("lapack|fedjax_het|callback")


class HostCallError(Exception):
    """A program calls a function of the host, or a kernel that exists for CPUs alone."""


class Problem(NamedTuple):
    """Inputs that a model is compiled with."""

    shape: tuple[int, ...]  # (height, width, channel) of an image, or (length,) of a text
    is_dense: bool = False  # whether every pixel or every position has a label
    options: Mapping[str, Any] = MappingProxyType({})  # of the model


PROBLEMS = {
    "mlp": Problem((28, 28, 1), options={"norm": "batch"}),  # FedBN needs a norm to keep
    "lenet": Problem((32, 32, 3)),
    "cnn": Problem((28, 28, 1)),
    "resnet18": Problem((32, 32, 3)),
    "resnet50": Problem((32, 32, 3)),
    "densenet121": Problem((64, 64, 3)),
    "harmofl_densenet": Problem((96, 96, 3)),
    "unet": Problem((64, 64, 3), is_dense=True),
    "lstm": Problem((80,)),
    "transformer": Problem((80,), is_dense=True),
}

IMAGE_MODELS = tuple(name for name, problem in PROBLEMS.items() if len(problem.shape) == 3)


def trace(algorithm: str, model: str, layout: Layout) -> TracedRound:
    """Trace a run of the algorithm on synthetic images, or texts, of the model's size."""
    problem = PROBLEMS[model]
    federation = _draw_texts(problem) if len(problem.shape) == 1 else _draw_images(problem)
    network = MODELS[model](num_classes=federation.num_classes, **problem.options)
    sweep = Sweep(lambda: ALGORITHMS[algorithm](learning_rate=0.01, batch_size=BATCH))
    return trace_round(RunSpec(sweep, network, federation, fh.participation.uniform(COHORT), 10, 5), layout)


def _draw_images(problem: Problem) -> fh.data.Federation:
    height, width, channels = problem.shape
    return fh.data.toy(
        CLIENTS,
        num_classes=2 if problem.is_dense else 10,
        image=(height, width, channels),
        masks=problem.is_dense,
        examples_per_client=(EXAMPLES, EXAMPLES),
    )


def _draw_texts(problem: Problem) -> fh.data.Federation:
    rng, number = np.random.default_rng(0), CLIENTS * EXAMPLES
    texts = rng.integers(0, ALPHABET, (number, *problem.shape), np.int32)
    labels = rng.integers(0, ALPHABET, texts.shape if problem.is_dense else number, np.int32)
    names = [str(token) for token in range(ALPHABET)]
    dataset = fh.data.assemble("texts", texts, labels, class_names=names)
    return fh.data.federate(dataset, fh.data.iid(), CLIENTS, test_fraction=0.2)


def compile_case(
    algorithm: str, model: str, layout_name: str, target: Target, names: Sequence[str] = PROGRAMS
) -> list[Record]:
    """Compile the rounds and the evaluation, and return a row for each: its figures, or what the compiler said."""
    case = {"algorithm": algorithm, "model": model, "layout": layout_name}
    rows = []
    with tracing_for(target.traced_platform):
        try:
            traced = trace(algorithm, model, target.layout(layout_name))
        except InputError as error:
            return [case | {"program": name, "result": f"refused: {error}"} for name in names]
        programs = RunPrograms(traced)
        for name in names:
            try:
                figures = measure(getattr(programs, name)(), traced, target)
            except Exception as error:  # whatever a compiler raises is a result
                figures = {"result": f"failed: {first_line(error)}"}
            rows.append(case | {"program": name} | figures)
    return rows


def measure(program: Program, traced: TracedRound, target: Target) -> Record:
    """Compile a program of a traced run, or lower it where the target has no devices, and return its figures."""
    begun = time.perf_counter()
    if not target.devices:
        lowered = program.function.trace(*program.arguments).lower(lowering_platforms=(target.platform,))
        seconds = {"result": "lowered", "trace_s": time.perf_counter() - begun}
        return seconds | _describe_lowered(lowered.as_text())
    lowered = program.function.lower(*target.place(program.arguments, traced.layout))
    traced_at, cores_at = time.perf_counter(), _core_seconds()
    compiled = lowered.compile()
    seconds = {"result": "compiled", "trace_s": traced_at - begun, "compile_s": time.perf_counter() - traced_at}
    seconds |= {"compile_cpu_s": _core_seconds() - cores_at}
    memory: Any = compiled.memory_analysis()
    sizes = {"argument_mb": memory.argument_size_in_bytes / 1e6, "temporary_mb": memory.temp_size_in_bytes / 1e6}
    text = compiled.as_text() or ""
    sizes = {"instructions": count_instructions(text)} | sizes
    if target.platform == "cpu":
        return seconds | sizes
    costs = count_costs(text, count_trips(traced))
    figures = {"gflop": costs.all_flop / 1e9, "gb": costs.bytes / 1e9, "operations": costs.operations}
    figures |= {"collectives_mb": _describe_collectives(costs)}
    if target.chip:
        figures["estimated_s"] = estimate_seconds(costs, target.chip)
    lowered_figures = _describe_lowered(lowered.as_text())
    return seconds | sizes | figures | lowered_figures | {"float64_compiled": len(re.findall(r" f64\[", text))}


def _core_seconds() -> float:
    """Seconds of all cores that this process and the ones that it has started took; GPUs' assembler is such a one."""
    return sum(os.times()[:4])


def count_trips(traced: TracedRound) -> Mapping[str, float]:
    """The iterations of one round's loops whose bounds depend on data, by `jax.named_scope`, for the largest client."""
    update = traced.spec.algorithm.local_update
    most = int(np.max(traced.spec.federation.data.train.count))
    batches, steps = -(-most // update.batch_size), int(update.num_steps(np.array([most]))[0])
    slots = traced.layout.round_up(COHORT) // traced.layout.num_devices
    return {
        "rounds": 1,
        "round": 1,
        "chunks": slots // traced.layout.chunk_size(slots),
        "epochs": -(-steps // batches),
        "steps": batches,
        "batches": batches,
        "": max(steps, slots),  # loops in no scope: over the cohort's clients, to put back their states, or over steps
    }


def _describe_lowered(text: str) -> Record:
    """Operations in float64, and calls of libraries; raises an error for calls that only hosts and CPUs have."""
    calls = sorted(set(re.findall(r"custom_call @([\w.]+)", text)) - _SHARDING_CALLS)
    if wrong := [name for name in calls if _HOST_CALL.search(name)]:
        raise HostCallError(f"calls that the device does not have: {', '.join(wrong)}")
    return {"float64_lowered": len(re.findall(r"xf64>|<f64>", text)), "custom_calls": " ".join(calls)}


def _describe_collectives(costs: Costs) -> str:
    return ", ".join(f"{kind} {size / 1e6:.3g}" for kind, size in sorted(costs.collectives.items()))


def _parse_command(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse_flags.ArgumentParser(prog="python -m experiments.benchmarks.compile", allow_abbrev=False)
    parser.add_argument(
        "--platform", choices=tuple(DEFAULT_TOPOLOGIES), help="by default that of the topology, or else tpu"
    )
    parser.add_argument(
        "--topology", help="chips of a TPU, such as v5e:2x2 (default: v5e:1x1), or GPUs, such as h100:4 (default: none)"
    )
    parser.add_argument("--algorithms", default="all", help="comma-separated, or all")
    parser.add_argument("--models", default="mlp", help="comma-separated, or all")
    parser.add_argument("--layouts", default="vmapped", help=f"{', '.join(LAYOUTS)}, or all")
    parser.add_argument("--programs", default="all", help=f"{', '.join(PROGRAMS)}, or all")
    parser.add_argument("--effort", type=float, default=0.0, help="of the compiler, from -1 to 1; 0 is what runs have")
    parser.add_argument("--json", type=Path, help="the file of figures, continued if it exists")
    parser.add_argument("--markdown", type=Path, help="a file for the table")
    known = parser.parse_args(list(argv))
    for name, choices in (
        ("algorithms", ALGORITHMS),
        ("models", PROBLEMS),
        ("layouts", LAYOUTS),
        ("programs", PROGRAMS),
    ):
        setattr(known, name, select_names(f"--{name}", getattr(known, name), choices))
    known.platform = known.platform or platform_of(known.topology or DEFAULT_TOPOLOGIES["tpu"])
    if known.topology is None:
        known.topology = DEFAULT_TOPOLOGIES[known.platform]
    if not -1 <= known.effort <= 1:
        raise InputError(f"--effort: {known.effort:g} is not from -1 to 1.")
    if known.effort and known.platform != "tpu":
        raise InputError("--effort: it is the compiler's for TPUs. Leave it out, or write --platform=tpu.")
    if known.platform == "cpu" and "sharded" in known.layouts:
        raise InputError("--layouts: a CPU is compiled for as one device. Write vmapped or chunked.")
    for name in ("json", "markdown"):
        if path := getattr(known, name):
            check_json_path(path, f"--{name}")
    return known


def run_command(known: argparse.Namespace) -> int:
    jax.config.update("jax_platforms", "cpu")  # nothing runs on the devices that are compiled for
    target, file = find_target(known.platform, known.topology), FigureFile(known.json)
    effort = f", effort {known.effort:g}" if known.effort else ""
    file.describe({"device": f"{target.topology}{effort}", "versions": f"JAX {jax.__version__}"})
    if known.effort:
        jax.config.update("jax_exec_time_optimization_effort", known.effort)
    done = {tuple(record[key] for key in ("algorithm", "model", "layout", "program")) for record in file.records}
    for case in itertools.product(known.algorithms, known.models, known.layouts):
        missing = [program for program in known.programs if (*case, program) not in done]
        if not missing:
            continue
        print(*case, end=": ", flush=True)
        for row in compile_case(*case, target, missing):
            file.add("programs", row)
            print(
                row["program"],
                row["result"],
                f"{row.get('trace_s', 0) + row.get('compile_s', 0):.1f} s",
                end="; ",
                flush=True,
            )
        print()
    table = format_table("programs", file.records)
    print(table)
    if known.markdown:
        known.markdown.write_text(table)
    return int(any(record["result"].startswith("failed") for record in file.records))


@with_exit_status()
def main(argv: Sequence[str]) -> int:
    """Run the command and return its exit status."""
    return run_command(_parse_command(argv))


if __name__ == "__main__":
    jax.config.update("jax_enable_compilation_cache", False)  # seconds are those of compiling
    sys.exit(main(sys.argv[1:]))

"""Check that rounds and evaluations compile for accelerators that are not present:

    python -m experiments.benchmarks.compile --topology=v5e:2x2 --algorithms=all --models=mlp --layouts=sharded

Compiles the round, the exchange of client states with its cohort, and the evaluation of a run for a TPU slice, such as
v5e:1x1 or v5e:2x2, with the compiler of the extra `tpu`, or for H100 GPUs, such as h100:1 or h100:4, with that of the
extra `cuda13`. --topology=cuda lowers the programs for GPUs, and needs no extra. The process itself computes on the
CPU.
A program fails if the compiler rejects it, if it calls a function that only hosts and CPUs have, or if a collective
sends the states of all clients. The table has a row per program, with XLA's figures: for TPUs, GFLOP and GB of
memory traffic (XLA counts the body of a loop once); MB of arguments and temporary arrays on each device, MB of the
results of collectives by kind, operations in float64, and custom calls. Rows are appended to --json; programs
listed there are skipped. JAX_EXEC_TIME_OPTIMIZATION_EFFORT=-1 makes the compiler of TPUs faster, its programs slower.
Exit status: 0 = all compiled, or were refused for a stated reason, 1 = some failed, 2 = an input error.
"""

import argparse
import itertools
import re
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import numpy as np
from absl.flags import argparse_flags

import fedjax_het as fh
from fedjax_het._internal.target_platform import tracing_for
from fedjax_het.algorithms import ALGORITHMS
from fedjax_het.cli.configuration.command_line import with_exit_status
from fedjax_het.cli.runs.setting_text import select_names
from fedjax_het.engine.execution.evaluator import Evaluator
from fedjax_het.engine.execution.programs import RunPrograms
from fedjax_het.engine.execution.run_spec import RunSpec
from fedjax_het.engine.execution.trace import TracedRound, trace_round
from fedjax_het.engine.parallel.compilation import Program
from fedjax_het.engine.parallel.layout import Layout
from fedjax_het.engine.parallel.runs import Sweep
from fedjax_het.errors import InputError
from fedjax_het.models import MODELS, computed_in, lora, no_adapter
from fedjax_het.types import Model

from .collectives import check_collectives, list_collectives
from .figure_file import FigureFile, Record, format_table
from .rounds import check_json_path
from .targets import LAYOUTS, Target, find_target, first_line

CLIENTS, COHORT, EXAMPLES, BATCH = 100, 8, 100, 20  # clients, clients per round, examples per client, batch size
ALPHABET = 80  # characters of a text

_SHARDING_CALLS = {"Sharding", "SPMDFullToShardShape", "SPMDShardToFullShape"}
_HOST_CALL = re.compile("lapack|fedjax_het|callback")


class HostCallError(Exception):
    """A program calls a function of the host, or a kernel that exists for CPUs alone."""


class Problem(NamedTuple):
    """Inputs that a model is compiled with."""

    shape: tuple[int, ...]  # (height, width, channel) of an image, or (length,) of a text
    is_dense: bool = False  # whether every pixel or every position has a label
    options: Mapping[str, Any] = MappingProxyType({})  # of the model
    adapt: Callable[[Model], Model] = no_adapter()
    cohort: int = COHORT
    examples: int = EXAMPLES
    batch: int = BATCH
    chunk: int | None = None  # clients at a time on each device, in every layout


def _adapt_in_bfloat16(model: Model) -> Model:
    return computed_in("bfloat16")(lora(8, targets=("query", "value"))(model))


TINY = MappingProxyType({"features": 64, "layers": 2, "heads": 4, "mlp_size": 128, "vocabulary": 80})
PROBLEMS = {
    "mlp": Problem((28, 28, 1), options={"norm": "batch"}),  # FedBN needs a norm to keep
    "lenet": Problem((32, 32, 3)),
    "cnn": Problem((28, 28, 1)),
    "resnet18": Problem((32, 32, 3)),
    "resnet50": Problem((32, 32, 3)),
    "densenet121": Problem((64, 64, 3)),
    "harmofl_densenet": Problem((96, 96, 3)),
    "unet": Problem((64, 64, 3), is_dense=True),
    "vit": Problem((224, 224, 3), False, {"size": "base"}, _adapt_in_bfloat16, CLIENTS, examples=16, batch=8, chunk=5),
    "lstm": Problem((80,)),
    "transformer": Problem((80,), is_dense=True),
    "bert": Problem((80,), options=TINY),
    "gpt2": Problem((80,), is_dense=True, options=TINY),
    "llama": Problem((80,), is_dense=True, options=TINY),
}


def trace(algorithm: str, model: str, layout: Layout) -> TracedRound:
    """Trace a run of the algorithm on synthetic images, or texts, of the model's size."""
    problem = PROBLEMS[model]
    federation = _draw_texts(problem) if len(problem.shape) == 1 else _draw_images(problem)
    network = problem.adapt(MODELS[model](num_classes=federation.num_classes, **problem.options))
    sweep = Sweep(lambda: ALGORITHMS[algorithm](learning_rate=0.01, batch_size=problem.batch))
    if sweep.algorithms[0].reads_public:
        federation = federation.with_public(federation.examples.inputs[:1000])
    return trace_round(RunSpec(sweep, network, federation, fh.participation.uniform(problem.cohort), 10, 5), layout)


def _draw_images(problem: Problem) -> fh.data.Federation:
    height, width, channels = problem.shape
    return fh.data.toy(
        CLIENTS,
        num_classes=2 if problem.is_dense else 10,
        image=(height, width, channels),
        masks=problem.is_dense,
        examples_per_client=(problem.examples, problem.examples),
    )


def _draw_texts(problem: Problem) -> fh.data.Federation:
    rng, number = np.random.default_rng(0), CLIENTS * problem.examples
    texts = rng.integers(0, ALPHABET, (number, *problem.shape), np.int32)
    labels = rng.integers(0, ALPHABET, texts.shape if problem.is_dense else number, np.int32)
    names = [str(token) for token in range(ALPHABET)]
    dataset = fh.data.assemble("texts", texts, labels, class_names=names)
    return fh.data.federate(dataset, fh.data.iid(), CLIENTS, test_fraction=0.2)


def compile_case(algorithm: str, model: str, layout: str, target: Target) -> list[Record]:
    """Compile the programs of a run, and return a row for each: its figures, or the reason for their absence."""
    case = {"algorithm": algorithm, "model": model, "layout": layout}
    rows = []
    with tracing_for(target.traced_platform):
        try:
            traced = trace(algorithm, model, target.layout(layout, PROBLEMS[model].chunk))
        except InputError as error:
            return [case | {"program": "rounds", "result": f"refused: {error}"}]
        for name, program in run_programs(traced).items():
            try:
                figures = measure(program, traced, target)
            except Exception as error:  # whatever a compiler raises is a result
                figures = {"result": f"failed: {first_line(error)}"}
            rows.append(case | {"program": name} | figures)
    return rows


def run_programs(traced: TracedRound) -> dict[str, Program]:
    """The programs of a run with everything on the device: its round, the exchange of client states, its evaluation."""
    run = RunPrograms(traced)
    exchange = zip(("gather", "scatter"), run.exchange(), strict=False)  # neither if all clients take part
    evaluation = {name: program for name, (program, _) in Evaluator(run).programs().items()}
    return {"rounds": run.round(), **dict(exchange), **evaluation}


def measure(program: Program, traced: TracedRound, target: Target) -> Record:
    """Compile a program of a traced run, or lower it where the target has no devices, and return its figures.

    Raises:
        HostCallError: The program calls what the device does not have.
        GatheredStatesError: A collective sends a tensor of all clients' states.
    """
    if not target.devices:
        lowered = program.function.trace(*program.arguments).lower(lowering_platforms=(target.platform,))
        return {"result": "lowered"} | _list_custom_calls(lowered.as_text())
    lowered = program.function.lower(*target.place(program.arguments, traced.layout))
    calls, begun = _list_custom_calls(lowered.as_text()), time.perf_counter()
    compiled = lowered.compile()
    figures = {"result": "compiled", "compile_s": time.perf_counter() - begun}
    memory: Any = compiled.memory_analysis()
    text = compiled.as_text() or ""
    if costs := compiled.cost_analysis():  # None for GPUs that are not present
        figures |= {"gflop": costs["flops"] / 1e9, "gb": costs["bytes accessed"] / 1e9}
    figures |= {"argument_mb": memory.argument_size_in_bytes / 1e6, "temporary_mb": memory.temp_size_in_bytes / 1e6}
    collectives, run = list_collectives(text), traced.spec
    check_collectives(collectives, traced.shapes.state, run.participation.size(run.federation.num_clients))
    sums = {kind: sum(num_bytes for other, num_bytes in collectives if other == kind) for kind, _ in collectives}
    named = ", ".join(f"{kind} {num_bytes / 1e6:.3g}" for kind, num_bytes in sorted(sums.items()))
    return figures | {"collectives_mb": named, "float64": len(re.findall(r" f64\[", text))} | calls


def _list_custom_calls(text: str) -> Record:
    """Name the library functions that a program calls; raises HostCallError for those that only hosts and CPUs have."""
    calls = sorted(set(re.findall(r"custom_call @([\w.]+)", text)) - _SHARDING_CALLS)
    if wrong := [name for name in calls if _HOST_CALL.search(name)]:
        raise HostCallError(f"calls that the device does not have: {', '.join(wrong)}")
    return {"custom_calls": " ".join(calls)}


def _parse_command(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse_flags.ArgumentParser(prog="python -m experiments.benchmarks.compile", allow_abbrev=False)
    parser.add_argument("--topology", default="v5e:1x1", help="v5e:1x1, v5e:2x2, h100:1, h100:4, ... or cuda")
    parser.add_argument("--algorithms", default="all", help="comma-separated, or all")
    parser.add_argument("--models", default="mlp", help="comma-separated, or all")
    parser.add_argument("--layouts", default="vmapped", help=f"{', '.join(LAYOUTS)}, or all")
    parser.add_argument("--json", type=Path, help="the file of results, appended to if it exists")
    flags = parser.parse_args(list(argv))
    for name, choices in (("algorithms", ALGORITHMS), ("models", PROBLEMS), ("layouts", LAYOUTS)):
        setattr(flags, name, select_names(f"--{name}", getattr(flags, name), choices))
    if flags.json:
        check_json_path(flags.json)
    return flags


def run_command(flags: argparse.Namespace) -> int:
    jax.config.update("jax_platforms", "cpu")  # nothing runs on the devices that are compiled for
    target, file = find_target(flags.topology), FigureFile(flags.json)
    file.describe({"device": flags.topology, "versions": f"JAX {jax.__version__}"})
    done = {(record["algorithm"], record["model"], record["layout"]) for record in file.records}
    for case in itertools.product(flags.algorithms, flags.models, flags.layouts):
        if case in done:
            continue
        rows = compile_case(*case, target)
        print(*case, *(f"{row['program']} {row['result']}" for row in rows), sep=", ", flush=True)
        for row in rows:
            file.add("programs", row)
    print(format_table("programs", file.records))
    return int(any(record["result"].startswith("failed") for record in file.records))


@with_exit_status()
def main(argv: Sequence[str]) -> int:
    """Run the command and return its exit status."""
    return run_command(_parse_command(argv))


if __name__ == "__main__":
    jax.config.update("jax_enable_compilation_cache", False)  # JAX has no cache for devices that are not present
    sys.exit(main(sys.argv[1:]))

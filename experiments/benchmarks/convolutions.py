"""The convolution for accelerators that are not there, from the compiler's own count of each candidate:

    python -m experiments.benchmarks.convolutions --topology=v5e:1x1 --model=cnn --json=convolutions.json

Where a device is there, the layout "auto" times the candidates. Here the rounds of FedAvg are compiled with each of
them, as in `experiments.benchmarks.compile`, and the one with the shortest estimate is named: the longer of arithmetic
and memory traffic at the chip's published rates. Estimates are lower bounds, and no timings.
Exit status: 0 = all compiled, 1 = some failed, 2 = an input error.
"""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import jax
from absl.flags import argparse_flags

from fedjax_het._internal.target_platform import tracing_for
from fedjax_het.engine.execution.programs import RunPrograms
from fedjax_het.engine.execution.trace import trace_round
from fedjax_het.engine.parallel.layout import chunked, vmapped
from fedjax_het.engine.planning.autotune import Candidate, pair_up
from fedjax_het.errors import InputError
from fedjax_het.models import MODELS, Precision, computed_in, find_conv_candidates

from ..configuration.command_line import with_exit_status
from . import compile
from .figure_file import FigureFile, Record, format_table
from .rounds import check_json_path
from .targets import Target, find_target, platform_of


def count_candidate(candidate: Candidate, model: str, precision: Precision, target: Target) -> Record:
    """Compile the rounds of FedAvg with this candidate, and return what the compiler's program takes."""
    with tracing_for(target.traced_platform):
        spec = candidate.adapt(compile.trace("fedavg", model, candidate.layout).spec)
        traced = trace_round(replace(spec, model=computed_in(precision)(spec.model)), candidate.layout)
        figures = compile.measure(RunPrograms(traced).rounds(), traced, target)
    return {key: figures[key] for key in ("compile_s", "temporary_mb", "gflop", "gb", "operations", "estimated_s")}


def describe_choice(records: Sequence[Record]) -> str:
    """Which candidate has the shortest estimate, against which others."""
    counted = [each for each in records if "estimated_s" in each]
    if not counted:
        return "nothing was compiled"
    best, *others = sorted(counted, key=lambda each: each["estimated_s"])
    against = ", ".join(f"{each['name']} {each['estimated_s']:.3g}" for each in others)
    return f"{best['name']}: {best['estimated_s']:.3g} s per round estimated, against {against or 'none'}"


def _parse_command(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse_flags.ArgumentParser(prog="python -m experiments.benchmarks.convolutions", allow_abbrev=False)
    parser.add_argument("--topology", default="v5e:1x1", help="one chip or GPU: v5e:1x1, h100:1, ...")
    parser.add_argument("--model", default="cnn", choices=compile.IMAGE_MODELS)
    parser.add_argument("--precision", default="float32", choices=("float32", "bfloat16"))
    parser.add_argument("--json", type=Path, help="the file of figures, continued if it exists")
    known = parser.parse_args(list(argv))
    if known.json:
        check_json_path(known.json, "--json")
    return known


def run_command(known: argparse.Namespace) -> int:
    jax.config.update("jax_platforms", "cpu")  # nothing runs on the devices that are compiled for
    target, file = find_target(platform_of(known.topology), known.topology), FigureFile(known.json)
    if len(target.devices) != 1 or target.chip is None:
        raise InputError(f"--topology: '{known.topology}' is not one chip of known rates. Write v5e:1x1 or h100:1.")
    file.describe(
        {"device": f"{known.topology}, {known.model}, {known.precision}", "versions": f"JAX {jax.__version__}"}
    )
    with tracing_for(target.traced_platform):
        problem = compile.PROBLEMS[known.model]
        network = MODELS[known.model](num_classes=2, **problem.options)
        images = jax.ShapeDtypeStruct((1, *problem.shape), "float32")
        convs = find_conv_candidates(network, images, is_layout_given=False)
    if not convs:
        raise InputError(f"--model: {known.model} has no convolutions. Take another.")
    candidates = {str(each): each for each in [*pair_up([vmapped], convs), Candidate(chunked(1), convs[0])]}
    for name in file.missing("convolutions", candidates):
        print(name, end=": ", flush=True)
        try:
            figures = count_candidate(candidates[name], known.model, known.precision, target)
        except jax.errors.JaxRuntimeError as error:  # whatever the compiler says is a result
            figures = {"error": str(error).strip().splitlines()[0][:200]}
        file.add("convolutions", {"name": name} | figures)
        print(figures.get("error", f"compiled in {figures.get('compile_s', 0):.1f} s"), flush=True)
    print(format_table("convolutions", file.records))
    print(describe_choice(file.records))
    return int(any("error" in record for record in file.records))


@with_exit_status()
def main(argv: Sequence[str]) -> int:
    """Run the command and return its exit status."""
    return run_command(_parse_command(argv))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Timings on a GPU: python -m experiments.benchmarks.gpu --json=gpu.json

Times rounds of FedAvg with several layouts and implementations of convolutions, in TF32, float32 and bfloat16 (rounds);
the same rounds in PyTorch on the same GPU, which needs the extra `bench` (peers); and aggregators that edit updates
(aggregators). Timings are appended to the --json file; those listed there are skipped, so that the same command
continues an interrupted run. Delete the record of a failed timing to repeat it. On a CPU, rounds are timed in float32
only; with --tiny that is a short trial of the command.
Exit status: 0 = everything was timed, 1 = some timings failed, 2 = an input error.
"""

import argparse
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import NamedTuple

import jax
from absl.flags import argparse_flags

from fedjax_het import algorithms, engine
from fedjax_het.cli.configuration.command_line import with_exit_status
from fedjax_het.cli.distributed import layouts
from fedjax_het.cli.distributed.layouts import read_layout
from fedjax_het.engine.parallel.layout import vmapped
from fedjax_het.engine.planning import autotune

from . import aggregators
from .figure_file import FigureFile, Record, format_table
from .harness import Benchmark, BenchmarkRules
from .peers import OURS, ours
from .rounds import check_json_path
from .targets import first_line
from .workloads import LAYERED, W2, W3, W4_SMALL, Workload

PEERS = ("torch_lean", "torch_graph", "torch_vmap")
LAYOUTS = {"vmapped": ("lax", "im2col"), "chunked(10)": ("lax", "im2col"), "chunked(1)": ("lax",), "auto": ("auto",)}
"""{layout: implementations of convolutions}; a model without convolutions takes the first."""
ENTRIES = 100_000_000  # numbers in the stack of updates that aggregators read
ROUNDS, MAX_SECONDS = 7, 20.0  # timing ends at the first of both


class Task(NamedTuple):
    """Records that are measured together."""

    part: str
    names: list[str]
    run: Callable[[], Iterator[Record]]  # the records, by these names


def list_tasks(*, is_tiny: bool) -> Iterator[Task]:
    """List the timed tasks; `is_tiny` uses the smallest sizes, for a trial of the command."""
    precisions = ("tf32", "float32", "bfloat16") if jax.default_backend() == "gpu" else ("float32",)
    works = [work.resized(2, 20) for work in (W2, W3)] if is_tiny else [work.resized(100) for work in LAYERED.values()]
    for work in works if is_tiny else [*works, W4_SMALL.resized(10, 500)]:
        for precision in precisions:
            yield from _list_rounds(work, precision)
    for work in works:
        yield _list_peers(work, precisions[0])
    for num_clients in (2,) if is_tiny else (10, 100, 1000):
        yield _list_aggregators(num_clients, 10_000 if is_tiny else ENTRIES)


def _list_rounds(work: Workload, precision: str) -> Iterator[Task]:
    for layout, convs in LAYOUTS.items():
        for conv in convs if getattr(work, "convolutions", ()) else convs[:1]:
            name = f"{work.name}, {precision}: {layout}, {conv}"
            yield Task(
                "rounds",
                [name],
                lambda name=name, layout=layout, conv=conv: iter(
                    [{"name": name} | _time(work, layout, conv, precision)]
                ),
            )


def _time(work: Workload, layout: str, conv: str, precision: str) -> Record:
    jax.config.update("jax_default_matmul_precision", None)  # an earlier task may have set it
    simulation = engine.Simulation(
        algorithms.fedavg(learning_rate=work.learning_rate, batch_size=work.batch_size),
        ours.with_matmul_precision(precision)(ours.build_model(work, conv)),
        ours.build_federation(work),
        rounds=1_000_000,
        evaluate_every=1,
        layout=read_layout(layout),
    )
    seconds, cost = autotune.time_rounds(simulation.executor, ROUNDS, MAX_SECONDS), simulation.cost
    chosen = {"reason": simulation.choice.reason} if simulation.choice else {}
    return chosen | _spread(seconds) | {"compile_s": cost.compile_seconds, "planned_mb": cost.peak_bytes / 1e6}


def _spread(seconds: Sequence[float]) -> Record:
    return {"median_s": median(seconds), "min_s": min(seconds), "max_s": max(seconds), "rounds": len(seconds)}


def _list_peers(work: Workload, precision: str) -> Task:
    def run() -> Iterator[Record]:
        rules = BenchmarkRules(
            warmup=1, cores=layouts.count_cores(), layout="vmapped", precision=precision, is_rated=False
        )
        measurements = Benchmark(work, PEERS, rules, report=lambda text: print(text, end="", flush=True)).run()
        for name, measurement in measurements.items():
            if measurement.is_timed:
                result = _spread(measurement.seconds) | {"is_comparable": measurement.is_comparable}
                result |= {"start_s": measurement.startup_seconds} | measurement.facts
            else:
                result = {"error": measurement.skipped or measurement.crashed[-300:] or "no round ended"}
            yield {"name": f"{work.name}, {precision}: {name}"} | result

    return Task("peers", [f"{work.name}, {precision}: {name}" for name in (OURS, *PEERS)], run)


def _list_aggregators(num_clients: int, entries: int) -> Task:
    name = f"{num_clients} clients x {entries // num_clients} numbers"

    def run() -> Iterator[Record]:
        jax.config.update("jax_default_matmul_precision", None)
        rows, rate = aggregators.measure(num_clients, entries, vmapped, aggregators.STACKS, ROUNDS)
        table = [row._asdict() for row in rows]
        yield {"name": name, "float64_product_tflops": rate / 1e12, "median_s": rows[0].seconds, "aggregators": table}

    return Task("aggregators", [name], run)


def _parse_command(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse_flags.ArgumentParser(prog="python -m experiments.benchmarks.gpu", allow_abbrev=False)
    parser.add_argument("--json", type=Path, required=True, help="the file of timings, appended to if it exists")
    parser.add_argument("--tiny", action="store_true", help="the smallest sizes, for a trial of the command")
    flags = parser.parse_args(list(argv))
    check_json_path(flags.json)
    return flags


@with_exit_status()
def main(argv: Sequence[str]) -> int:
    """Run the command and return its exit status."""
    flags = _parse_command(argv)
    file, device = FigureFile(flags.json), jax.devices()[0].device_kind
    file.describe({"device": f"{device}, tiny" if flags.tiny else device, "versions": f"JAX {jax.__version__}"})
    for task in list_tasks(is_tiny=flags.tiny):
        missing = file.missing(task.part, task.names)
        if not missing:
            continue
        print(f"{task.part}: {', '.join(missing)}", flush=True)
        try:
            records = list(task.run())
        except Exception as error:  # mostly out of memory; a failure is a result
            records = [{"name": name, "error": first_line(error)} for name in missing]
        for record in records:
            if record["name"] in missing:
                file.add(task.part, record)
    for part in dict.fromkeys(record["part"] for record in file.records):
        print(format_table(part, file.records))
    return int(any("error" in record for record in file.records))


if __name__ == "__main__":
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # the processes share the GPU's memory
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that no contender is left behind
    sys.exit(main(sys.argv[1:]))

"""Benchmark of aggregators that edit updates: python -m experiments.benchmarks.aggregators --clients=10,100,1000

All aggregators read the same stack of updates, [clients, entries / clients], in turn and in one process. They are
compared with the mean of the stack in float32 (fedavg). Printed for each: seconds (median, minimum and maximum), bytes
of the stack per second, the excess of the time over the mean's as a multiple of it, the share of the time that remains
with no more parameters than clients (work on a matrix [clients, clients]), and the memory of the program in addition to
the stack. Printed before them: the rate of a large float64 matrix product, and the time of the m (m + 1) n FLOP of a
Gram matrix at that rate. Exit status: 0 = done, 2 = an input error.
"""

import argparse
import itertools
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, get_args

import jax
import jax.numpy as jnp
import numpy as np
from absl.flags import argparse_flags
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from fedjax_het import tree
from fedjax_het._internal.keys import make_key
from fedjax_het.algorithms import ALGORITHMS
from fedjax_het.cli.configuration.command_line import with_exit_status
from fedjax_het.cli.distributed import layouts
from fedjax_het.cli.runs.setting_text import select_names
from fedjax_het.engine.parallel.layout import AXIS, Layout, sharded, vmapped
from fedjax_het.engine.parallel.update_stack import StackedUpdates, pack
from fedjax_het.engine.round import server_step
from fedjax_het.errors import InputError
from fedjax_het.server.aggregators._gram_space import StackDtype
from fedjax_het.types import Array, Broadcast, ServerView, Upload

STACKS = get_args(StackDtype)
EDITING_ALGORITHMS = ("fedld", "fedmgc", "fedgh")
MATRIX_SIZE = 2048  # of the float64 product


class Row(NamedTuple):
    aggregator: str
    seconds: float
    minimum: float
    maximum: float
    gigabytes_per_second: float
    excess_time: float  # over the mean's, as a multiple of it
    small_share: float  # of the time that remains with as many parameters as clients
    temporary_mb: float  # NaN where XLA does not report it


class CompiledProgram(NamedTuple):
    run: Callable[[Array], Any]
    argument: Array
    temporary: int | None = None  # bytes; None where XLA does not report them


def compile_aggregator(name: str, options: dict[str, Any], updates: Array, layout: Layout) -> CompiledProgram:
    """Compile the aggregator of an algorithm for these updates [clients, parameters]."""
    aggregator, num_clients = ALGORITHMS[name](**options).aggregator, updates.shape[0]
    losses, counts = jnp.linspace(0.5, 1.5, num_clients), jnp.ones(num_clients)

    def aggregate(stack: Array) -> Array:
        uploads = Upload({}, {"loss": losses}, counts, counts)
        received = Broadcast(jnp.zeros((), jnp.int32), {}, {})
        updates = StackedUpdates({"params": {"w": stack}}, layout)
        view = ServerView(received, uploads, jnp.arange(num_clients), counts > 0, num_clients, updates)
        # No aggregator here reads the problem.
        result = server_step.aggregate(aggregator, None, (), view)  # pyrefly: ignore[bad-argument-type]
        return result[0].update["params"]["w"]

    stack = jax.jit(pack)(updates) if options.get("aggregation") == {"stack": "bfloat16"} else updates
    compiled = layout.jit(aggregate, layout.sharding).lower(stack).compile()
    memory = compiled.memory_analysis()
    return CompiledProgram(compiled, stack, memory.temp_size_in_bytes if memory else None)


def compile_float64_product() -> CompiledProgram:
    with jax.enable_x64(True):
        matrix = jnp.asarray(np.random.default_rng(0).standard_normal((MATRIX_SIZE, MATRIX_SIZE)))
        return CompiledProgram(jax.jit(lambda x: x @ x).lower(matrix).compile(), matrix)


def draw_updates(num_clients: int, num_parameters: int, layout: Layout) -> Array:
    """Draw updates from a normal distribution, half of whose pairs are in conflict."""
    sharding = NamedSharding(layout.mesh, P(AXIS)) if layout.mesh else None
    draw = jax.jit(lambda key: jax.random.normal(key, (num_clients, num_parameters)), out_shardings=sharding)
    return draw(make_key(0))


def measure(
    num_clients: int, entries: int, layout: Layout, stacks: Sequence[str], repeats: int
) -> tuple[list[Row], float]:
    """Measure all aggregators.

    Returns:
        One row per aggregator, the mean first, and the FLOP per second of a float64 matrix product.
    """
    calls: dict[str, tuple[str, dict[str, Any]]] = {"fedavg": ("fedavg", {})}
    for stack, name in itertools.product(stacks, EDITING_ALGORITHMS):
        calls[f"{name} {stack}"] = name, {"aggregation": {"stack": stack}}
    large, small = (draw_updates(num_clients, count, layout) for count in (entries // num_clients, num_clients))
    programs = {label: compile_aggregator(*call, large, layout) for label, call in calls.items()}
    small_programs = {label: compile_aggregator(*call, small, layout) for label, call in calls.items()}
    seconds = _time_in_turn(programs | {"product": compile_float64_product()}, repeats)
    seconds_small = _time_in_turn(small_programs, repeats)
    mean_seconds, rate = np.median(seconds["fedavg"]), 2 * MATRIX_SIZE**3 / np.median(seconds.pop("product"))

    def row(label: str, times: list[float]) -> Row:
        median, program = float(np.median(times)), programs[label]
        speed, excess = tree.num_bytes(program.argument) / median / 1e9, float(median / mean_seconds) - 1
        memory = float("nan") if program.temporary is None else program.temporary / 1e6
        share = min(1.0, float(np.median(seconds_small[label])) / median)
        return Row(label, median, min(times), max(times), speed, excess, share, memory)

    return [row(label, times) for label, times in seconds.items()], float(rate)


def _time_in_turn(programs: dict[str, CompiledProgram], repeats: int) -> dict[str, list[float]]:
    seconds = {label: [] for label in programs}
    for _ in range(repeats + 1):
        for label, program in programs.items():
            start = time.perf_counter()
            jax.block_until_ready(program.run(program.argument))
            seconds[label].append(time.perf_counter() - start)
    return {label: times[1:] for label, times in seconds.items()}


def _format_table(num_clients: int, entries: int, rows: Sequence[Row], rate: float) -> str:
    flop = (num_clients + 1) * num_clients * (entries // num_clients)
    lines = [
        f"{num_clients:,} clients: {rate / 1e9:.0f} GFLOP/s in float64, a Gram matrix in {flop / rate:.4f} s, "
        f"{flop / rate / rows[0].seconds:.2f} times the mean's"
    ]
    for row in rows:
        lines.append(
            f"  {row.aggregator:16s} {row.seconds:8.4f} s [{row.minimum:.4f} to {row.maximum:.4f}]  "
            f"{row.gigabytes_per_second:6.2f} GB/s  {row.excess_time:+7.2f} times the mean's time  "
            f"{row.small_share:4.0%} on [clients, clients]  {row.temporary_mb:7.1f} MB"
        )
    return "\n".join(lines)


def _parse_lists(flags: argparse.Namespace, num_devices: int) -> tuple[list[int], list[str]]:
    stacks = select_names("--stack", flags.stack, STACKS)
    try:
        clients = list(map(int, flags.clients.split(",")))
    except ValueError as error:
        raise InputError(f"--clients: whole numbers, separated by commas, not '{flags.clients}'.") from error
    if any(count < 1 or count % num_devices for count in clients):
        raise InputError(f"--clients: every count must be a multiple of the {num_devices} devices.")
    if flags.entries < max(clients):
        raise InputError(f"--entries: {max(clients)} clients need at least as many entries, not {flags.entries:g}.")
    if flags.repeats < 1:
        raise InputError(f"--repeats: at least 1, not {flags.repeats}.")
    return clients, stacks


@with_exit_status()
def main(argv: Sequence[str]) -> int:
    """Run the command; return the exit status."""
    parser = argparse_flags.ArgumentParser(prog="python -m experiments.benchmarks.aggregators", allow_abbrev=False)
    parser.add_argument("--clients", default="10,100,1000", help="numbers of clients, separated by commas")
    parser.add_argument("--entries", type=float, default=1e8, help="numbers in the stack, of all clients together")
    parser.add_argument("--stack", default="all", help=f"{', '.join(STACKS)}, or all (the default)")
    parser.add_argument("--devices", type=int, default=1, help="devices that share the clients (default %(default)s)")
    parser.add_argument("--repeats", type=int, default=5)
    flags = parser.parse_args(list(argv))
    layouts.set_num_cpu_devices(flags.devices)
    try:
        layout = sharded(flags.devices) if flags.devices > 1 else vmapped
    except ValueError as error:
        raise InputError(f"--devices: {error}") from error
    clients, stacks = _parse_lists(flags, layout.num_devices)
    entries = int(flags.entries)
    for count in clients:
        print(_format_table(count, entries, *measure(count, entries, layout, stacks, flags.repeats)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

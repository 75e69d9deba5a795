"""What editing updates costs beside their mean: python -m experiments.benchmarks.aggregators --clients=10,100,1000

All aggregators read the same stack of updates, [clients, entries / clients], in turn and in one process. A pass is the
time of the plain mean of that stack in float32 (fedavg). Printed for each: seconds (median, least and most), the
stack's bytes over that time, passes beyond the mean's one, the share of the time that remains with no more parameters
than clients (work on clients x clients numbers), and the program's memory besides the stack. Before them: the rate of
a large float64 matrix product, and how many passes the m (m + 1) n FLOP of a Gram matrix take at that rate.
Exit status: 0 = done, 2 = a mistake in what was asked.
"""

import argparse
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
from fedjax_het.algorithms import ALGORITHMS
from fedjax_het.engine.parallel.layout import AXIS, Layout, sharded, vmapped
from fedjax_het.engine.parallel.update_stack import StackedUpdates, pack
from fedjax_het.engine.round import server_step
from fedjax_het.errors import InputError
from fedjax_het.server.aggregators._gram_space import StackDtype
from fedjax_het.types import Array, Broadcast, ServerView, Upload

from ..distributed import cpu_devices

STACKS = get_args(StackDtype)
EDITING = ("fedld", "fedmgc", "fedgh")
SIZE = 2048  # of the float64 matrices


class Row(NamedTuple):
    aggregator: str
    seconds: float
    least: float
    most: float
    gigabytes_per_second: float
    passes_beyond: float
    small_share: float
    temporary_mb: float


class Program(NamedTuple):
    run: Callable[[Array], Any]
    argument: Array
    temporary: int = 0  # bytes


def program(name: str, options: dict[str, Any], updates: Array, layout: Layout) -> Program:
    """An algorithm's aggregator, compiled for these updates [clients, parameters]."""
    aggregator, num_clients = ALGORITHMS[name](**options).aggregator, updates.shape[0]
    losses, counts = jnp.linspace(0.5, 1.5, num_clients), jnp.ones(num_clients)

    def combined(stack: Array) -> Array:
        uploads = Upload({}, {"loss": losses}, counts, counts)
        received = Broadcast(jnp.zeros((), jnp.int32), {}, {})
        updates = StackedUpdates({"params": {"w": stack}}, layout)
        view = ServerView(received, uploads, jnp.arange(num_clients), counts > 0, num_clients, updates)
        return server_step.aggregate(aggregator, None, (), view)[0].update["params"]["w"]

    stack = jax.jit(pack)(updates) if options.get("stack") == "bfloat16" else updates
    compiled = layout.jit(combined, layout.sharding).lower(stack).compile()
    return Program(compiled, stack, compiled.memory_analysis().temp_size_in_bytes)


def float64_product() -> Program:
    with jax.enable_x64(True):
        matrix = jnp.asarray(np.random.default_rng(0).standard_normal((SIZE, SIZE)))
        return Program(jax.jit(lambda x: x @ x).lower(matrix).compile(), matrix)


def noise(num_clients: int, num_parameters: int, layout: Layout) -> Array:
    """Updates of which every second pair is in conflict."""
    where = NamedSharding(layout.mesh, P(AXIS)) if layout.mesh else None
    draw = jax.jit(lambda key: jax.random.normal(key, (num_clients, num_parameters)), out_shardings=where)
    return draw(jax.random.key(0))


def measure(
    num_clients: int, entries: int, layout: Layout, stacks: Sequence[str], repeats: int
) -> tuple[list[Row], float]:
    """(a row an aggregator, the mean first; FLOP a second of a float64 matrix product)."""
    named = {"fedavg": ("fedavg", {})}
    named |= {f"{name} {stack}": (name, {"aggregation": {"stack": stack}}) for stack in stacks for name in EDITING}
    large, small = (noise(num_clients, count, layout) for count in (entries // num_clients, num_clients))
    programs = {label: program(*chosen, large, layout) for label, chosen in named.items()}
    few = {label: program(*chosen, small, layout) for label, chosen in named.items()}
    seconds, alone = _timed(programs | {"product": float64_product()}, repeats), _timed(few, repeats)
    a_pass, rate = np.median(seconds["fedavg"]), 2 * SIZE**3 / np.median(seconds.pop("product"))

    def row(label: str, times: list[float]) -> Row:
        median, one = float(np.median(times)), programs[label]
        speed, beyond = tree.num_bytes(one.argument) / median / 1e9, float(median / a_pass) - 1
        share = min(1.0, float(np.median(alone[label])) / median)
        return Row(label, median, min(times), max(times), speed, beyond, share, one.temporary / 1e6)

    return [row(label, times) for label, times in seconds.items()], float(rate)


def _timed(programs: dict[str, Program], repeats: int) -> dict[str, list[float]]:
    seconds = {label: [] for label in programs}
    for _ in range(repeats + 1):
        for label, one in programs.items():
            begun = time.perf_counter()
            jax.block_until_ready(one.run(one.argument))
            seconds[label].append(time.perf_counter() - begun)
    return {label: times[1:] for label, times in seconds.items()}


def _table(num_clients: int, entries: int, rows: Sequence[Row], rate: float) -> str:
    flop = (num_clients + 1) * num_clients * (entries // num_clients)
    lines = [
        f"{num_clients:,} clients: {rate / 1e9:.0f} GFLOP/s in float64, a Gram matrix in {flop / rate:.4f} s, "
        f"{flop / rate / rows[0].seconds:.2f} passes"
    ]
    for row in rows:
        lines.append(
            f"  {row.aggregator:16s} {row.seconds:8.4f} s [{row.least:.4f} to {row.most:.4f}]  "
            f"{row.gigabytes_per_second:6.2f} GB/s  {row.passes_beyond:7.2f} passes beyond  "
            f"{row.small_share:4.0%} on m x m  {row.temporary_mb:7.1f} MB"
        )
    return "\n".join(lines)


def _checked(known: argparse.Namespace, num_devices: int) -> tuple[list[int], list[str]]:
    clients, stacks = [int(text) for text in known.clients.split(",")], known.stack.split(",")
    if any(count < 1 or count % num_devices for count in clients):
        raise InputError(f"--clients: every count must be a multiple of the {num_devices} devices.")
    if known.entries < max(clients):
        raise InputError(f"--entries: {max(clients)} clients have at least as many numbers, not {known.entries:g}.")
    if not set(stacks) <= set(STACKS):
        raise InputError(f"--stack: '{known.stack}' is none of {', '.join(STACKS)}.")
    if known.repeats < 1:
        raise InputError(f"--repeats: at least 1, not {known.repeats}.")
    return clients, stacks


def main(argv: Sequence[str]) -> int:
    parser = argparse_flags.ArgumentParser(prog="python -m experiments.benchmarks.aggregators", allow_abbrev=False)
    parser.add_argument("--clients", default="10,100,1000", help="updates in the stack, with commas between")
    parser.add_argument("--entries", type=float, default=1e8, help="numbers in the stack, over all clients")
    parser.add_argument("--stack", default="float32,bfloat16", help="float32, bfloat16, or both")
    parser.add_argument("--devices", type=int, default=1, help="that share the clients")
    parser.add_argument("--repeats", type=int, default=5)
    known = parser.parse_args(list(argv))
    cpu_devices.set_num_cpu_devices(known.devices)
    try:
        layout = sharded(known.devices) if known.devices > 1 else vmapped
        clients, stacks = _checked(known, layout.num_devices)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    entries = int(known.entries)
    for count in clients:
        print(_table(count, entries, *measure(count, entries, layout, stacks, known.repeats)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

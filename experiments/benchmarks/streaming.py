"""Benchmark of streaming, the host-device traffic that rounds overlap: python -m experiments.benchmarks.streaming

Times rounds of SCAFFOLD on LeNet with everything on the device, and streamed, with images and client states in files.
The two take turns, so that the load of the machine affects both, and the page cache of the images is dropped before
every turn. Prints whether both end with the same model.
Exit status: 0 = done, 2 = an input error.
"""

import mmap
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import jax
import numpy as np
from absl.flags import argparse_flags

from fedjax_het import algorithms, data, models
from fedjax_het.cli.configuration.command_line import with_exit_status
from fedjax_het.cli.distributed import layouts
from fedjax_het.engine import Simulation
from fedjax_het.errors import InputError
from fedjax_het.types import State

SHAPE, NUM_CLASSES, BATCH_SIZE = (32, 32, 3), 10, 50


@contextmanager
def mapped_noise_images(num: int) -> Iterator[tuple[np.ndarray, Callable[[], None]]]:
    """Images of noise that are mapped from a file, and a function that drops them from memory."""
    generator = np.random.default_rng(0)
    with tempfile.TemporaryFile() as file:
        for start in range(0, num, 1000):
            file.write(generator.integers(0, 256, (min(1000, num - start), *SHAPE), np.uint8).tobytes())
        file.flush()
        os.fsync(file.fileno())
        mapped = np.memmap(file, np.uint8, "r", shape=(num, *SHAPE))

        def forget() -> None:
            mapped._mmap.madvise(mmap.MADV_DONTNEED)  # pyrefly: ignore[missing-attribute]: NumPy's stubs lack it
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)

        yield mapped, forget


def noise_federation(inputs: np.ndarray, num_clients: int) -> data.Federation:
    labels = np.random.default_rng(1).integers(0, NUM_CLASSES, len(inputs))
    names = [str(label) for label in range(NUM_CLASSES)]
    evenly = lambda labelled, num_clients, rng: np.split(np.arange(len(labels)), num_clients)  # noqa: E731
    dataset = data.assemble("noise", inputs, labels, class_names=names)
    return data.federate(dataset, evenly, num_clients, test_fraction=0.0, client_test_fraction=0.0)


def compare_executors(
    num_clients: int, cohort_size: int, num_examples: int, block: int, turns: int, layout: str
) -> None:
    with mapped_noise_images(num_clients * num_examples) as (inputs, forget):
        federated = noise_federation(inputs, num_clients)
        options: dict[str, Any] = {"rounds": 10**6, "evaluate_every": block, "cohort_size": cohort_size}
        options["layout"] = layouts.read_layout(layout)
        algorithm = algorithms.ALGORITHMS["scaffold"](learning_rate=0.01, batch_size=BATCH_SIZE)
        model = models.lenet(NUM_CLASSES)
        resident = Simulation(algorithm, model, federated, **options)
        options |= {"layout": resident.layout, "client_states": "disk", "examples": "stream"}
        streamed = Simulation(algorithm, model, federated, **options)
        contenders = {"on the device": resident, "streamed": streamed}
        states = {name: simulation.start() for name, simulation in contenders.items()}
        seconds = {name: [] for name in contenders}
        for turn in range(1 + turns):
            for name, simulation in contenders.items():
                forget()
                start_time = time.perf_counter()
                states[name], _ = simulation.advance(states[name], block)
                if turn:
                    seconds[name].append((time.perf_counter() - start_time) / block)
        print_report(seconds, {name: simulation.cost.peak_bytes for name, simulation in contenders.items()})
        print(f"{resident.layout}; same model to the bit after all rounds: {are_equal(list(states.values()))}")


def are_equal(states: Sequence[State]) -> bool:
    servers = [jax.tree.leaves((state.server, state.counters)) for state in states]
    return all(np.array_equal(x, first) for leaves in servers for x, first in zip(leaves, servers[0], strict=True))


def print_report(seconds: dict[str, list[float]], peaks: dict[str, int]) -> None:
    print(f"{'':16s} {'seconds per round':>17s} {'lowest':>8s} {'highest':>8s} {'MB on a device':>17s}")
    for name, times in seconds.items():
        lowest, highest = min(times), max(times)
        print(f"{name:16s} {np.median(times):17.4f} {lowest:8.4f} {highest:8.4f} {peaks[name] / 1e6:15.1f}")


@with_exit_status()
def main(argv: Sequence[str]) -> int:
    """Run the command; return the exit status."""
    parser = argparse_flags.ArgumentParser(prog="python -m experiments.benchmarks.streaming", allow_abbrev=False)
    defaults = {"clients": 1000, "cohort": 20, "examples": 200, "block": 5, "turns": 7}
    for name, default in defaults.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--layout", default="auto")
    flags = parser.parse_args(list(argv))
    for name in defaults:
        if getattr(flags, name) < 1:
            raise InputError(f"--{name}: must be 1 or more, not {getattr(flags, name)}.")
    compare_executors(flags.clients, flags.cohort, flags.examples, flags.block, flags.turns, flags.layout)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

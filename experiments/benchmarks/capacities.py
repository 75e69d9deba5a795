"""Benchmark of rounds of sub-networks: python -m experiments.benchmarks.capacities --widths=1,0.5,0.25

Times rounds of HeteroFL with HeteroFL's convolutional network, in which all ten clients have the same width, as smaller
networks and with masks over the whole network. They take turns, so that the load of the machine affects all.
Exit status: 0 = done, 2 = an input error.
"""

import sys
import time
from collections.abc import Sequence

import jax
import numpy as np
from absl.flags import argparse_flags

from fedjax_het import algorithms, data, models
from fedjax_het.cli.configuration.command_line import with_exit_status
from fedjax_het.cli.distributed import layouts
from fedjax_het.engine import Simulation
from fedjax_het.errors import InputError

_NUM_CLASSES, _NUM_EXAMPLES, _BATCH_SIZE = 10, 20, 10


def measure_rounds(
    widths: Sequence[float], layout: str, turns: int, epochs: int
) -> dict[tuple[float, str], list[float]]:
    """Return {(width, how sub-networks are computed): seconds of each round}."""
    federation = data.toy(10, _NUM_CLASSES, image=(28, 28, 1), examples_per_client=(_NUM_EXAMPLES, _NUM_EXAMPLES + 1))
    model = models.cnn(_NUM_CLASSES, (64, 128, 256, 512), (), kernel=3)
    options = {"rounds": 1000, "evaluate_every": 1000, "layout": layouts.read_layout(layout)}
    simulations = {}
    for width in widths:  # clients whose width may change are not trained as smaller networks
        for how, assignment in (("smaller", "fixed"), ("masked", "dynamic")):
            algorithm = algorithms.heterofl((width,), assignment, batch_size=_BATCH_SIZE, epochs=epochs)
            simulations[width, how] = Simulation(algorithm, model, federation, **options)
    states = {key: simulation.start() for key, simulation in simulations.items()}
    seconds = {key: [] for key in simulations}
    for turn in range(1 + turns):
        for key, simulation in simulations.items():
            start = time.perf_counter()
            states[key] = jax.block_until_ready(simulation.advance(states[key], 1)[0])
            if turn:
                seconds[key].append(time.perf_counter() - start)
    return seconds


@with_exit_status()
def main(argv: Sequence[str]) -> int:
    """Run the command; return the exit status."""
    parser = argparse_flags.ArgumentParser(prog="python -m experiments.benchmarks.capacities", allow_abbrev=False)
    parser.add_argument("--widths", default="1,0.5,0.25", help="the first is the reference (default %(default)s)")
    parser.add_argument("--layout", default="chunked(1)", help="default %(default)s")
    parser.add_argument("--turns", type=int, default=10, help="rounds of each (default %(default)s)")
    parser.add_argument("--epochs", type=int, default=1, help="epochs of two steps per round (default %(default)s)")
    flags = parser.parse_args(list(argv))
    for name in ("turns", "epochs"):
        if getattr(flags, name) < 1:
            raise InputError(f"--{name}: must be 1 or more, not {getattr(flags, name)}.")
    seconds = measure_rounds(read_widths(flags.widths), flags.layout, flags.turns, flags.epochs)
    reference = np.median(next(iter(seconds.values())))
    for (width, how), own in seconds.items():
        share = np.median(own) / reference
        print(f"{width:<6g} {how:<8s} {np.median(own):.3f} s ({min(own):.3f} to {max(own):.3f}), ratio {share:.2f}")
    return 0


def read_widths(text: str) -> list[float]:
    """Read numbers between commas."""
    try:
        return [float(width) for width in text.split(",")]
    except ValueError:
        raise InputError(f"--widths: expected numbers such as 1,0.5, not '{text}'.") from None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

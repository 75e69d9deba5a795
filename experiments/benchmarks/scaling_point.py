"""Measurement of one point of a scaling study in a process of its own:

    python -m experiments.benchmarks.scaling_point '{"algorithm": ...}'

The peak memory of the process is that of the point. Prints one JSON object.
"""

import json
import resource
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedjax_het import models, tree
from fedjax_het.algorithm import Algorithm
from fedjax_het.algorithms import ALGORITHMS
from fedjax_het.cli.distributed import layouts
from fedjax_het.data import Federation
from fedjax_het.data.federation import Fractions
from fedjax_het.data.preparation import Preparation
from fedjax_het.engine import OffloadPolicy, Sweep
from fedjax_het.engine.execution.executor import Executor
from fedjax_het.engine.execution.run_spec import RunSpec
from fedjax_het.engine.execution.trace import trace_round
from fedjax_het.engine.parallel.layout import Layout
from fedjax_het.engine.planning import autotune
from fedjax_het.engine.round import participation
from fedjax_het.types import ClientData, Examples, Rows

NUM_INPUTS, NUM_CLASSES = 54, 10
EXAMPLES_PER_CLIENT, POOL_SIZE = 20, 10_000  # clients' rows point into a common pool of examples
BATCH_SIZE = 10
BLOCK = 5  # rounds per call


class Point(NamedTuple):
    algorithm: str  # "name option=value ..."
    population: int
    cohort: int
    parameters: int
    client_states: str = "device"
    examples: str = "device"
    calls: int = 15


def measure(point: Point, layout: Layout) -> dict[str, Any]:
    """Seconds per round after one call for warming up, the memory of a device, and the peak memory of the process."""
    hidden = max(1, round((point.parameters - NUM_CLASSES) / (NUM_INPUTS + 1 + NUM_CLASSES)))
    algorithm = _build_algorithm(point.algorithm)
    model, rounds = models.mlp(NUM_CLASSES, hidden=(hidden,)), BLOCK * (1 + point.calls)
    spec = RunSpec(
        Sweep(lambda: algorithm),
        model,
        noise_federation(point.population),
        participation.full() if point.cohort == point.population else participation.uniform(point.cohort),
        rounds,
        BLOCK,
    )
    traced, offload = trace_round(spec, layout), OffloadPolicy(point.client_states, point.examples)
    runner = Executor(traced, offload, Path(tempfile.gettempdir()), is_tentative=True)
    seconds = autotune.time_rounds(runner, point.calls, block=BLOCK)
    median, state = float(np.median(seconds)), traced.shapes.state
    steps = int(algorithm.local_update.num_steps(np.array(EXAMPLES_PER_CLIENT)))
    return point._asdict() | {
        "parameters": tree.num_entries(state.server.shared["params"]),
        "layout": str(layout),
        "seconds_median": median,
        "seconds_min": min(seconds),
        "seconds_max": max(seconds),
        "client_steps_per_second": point.cohort * steps / median,
        "compile_seconds": runner.compile_seconds,
        "device_mb": runner.round_bytes / 1e6,
        "state_mb": tree.num_bytes(state.clients) / 1e6,
        "peak_rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3,
    }


def _build_algorithm(text: str) -> Algorithm:
    name, *pairs = text.split()
    options = dict(pair.split("=") for pair in pairs)
    numbers = {option: int(value) for option, value in options.items() if value.isdigit()}
    return ALGORITHMS[name](learning_rate=0.01, batch_size=BATCH_SIZE, **{**options, **numbers})


def noise_federation(population: int) -> Federation:
    """A federation of noise, since only the cost of a round is measured. Clients' rows overlap and take no memory."""
    generator = np.random.default_rng(0)
    inputs = generator.normal(size=(POOL_SIZE, NUM_INPUTS)).astype(np.float32)
    labels = generator.integers(0, NUM_CLASSES, POOL_SIZE).astype(np.int32)
    places = generator.integers(0, POOL_SIZE, population + EXAMPLES_PER_CLIENT - 1, dtype=np.int32)
    index = np.lib.stride_tricks.sliding_window_view(places, EXAMPLES_PER_CLIENT)
    rows = Rows(index, np.full(population, EXAMPLES_PER_CLIENT, np.int32))
    nothing = Rows(np.zeros((population, 1), np.int32), np.zeros(population, np.int32))
    data = ClientData(Examples(inputs, labels), rows, nothing, nothing)
    class_names = tuple(map(str, range(NUM_CLASSES)))
    return Federation(
        "noise",
        data,
        None,
        None,
        {},
        class_names,
        client_names=(),
        newcomer_names=(),
        prepare=Preparation(),
        fractions=Fractions(0.0, 0.0, 0.0),
    )


def main(text: str) -> None:
    point = Point(**json.loads(text))
    layouts.set_num_cpu_devices(layouts.count_cores())
    print(json.dumps(measure(point, autotune.candidates(point.cohort)[0])))


if __name__ == "__main__":
    main(sys.argv[1])

"""One point of a scaling study, measured in a process of its own: python -m experiments.point '{"algorithm": ...}'

Its peak memory is then its own. Prints one JSON object.
"""

import json
import resource
import sys
import time
from typing import Any, NamedTuple

import jax
import numpy as np

from experiments import cores
from fedjax_het import models, tree
from fedjax_het.algorithms import ALGORITHMS
from fedjax_het.engine import placement, tuning
from fedjax_het.engine.layout import Layout
from fedjax_het.engine.participation import uniformly
from fedjax_het.engine.round import make_round
from fedjax_het.types import ClientData, Examples, Rows

NUM_INPUTS, NUM_CLASSES = 54, 10
EXAMPLES_A_CLIENT, POOL = 20, 10_000  # rows of a table into a common pool: who has what does not matter here
BATCH_SIZE = 10


class Point(NamedTuple):
    algorithm: str
    population: int
    cohort: int
    parameters: int
    rounds: int = 5


def measure(point: Point, layout: Layout) -> dict[str, Any]:
    """Seconds a round after two to warm up, and what the process held at most."""
    hidden = max(1, round((point.parameters - NUM_CLASSES) / (NUM_INPUTS + 1 + NUM_CLASSES)))
    model, data = models.mlp(NUM_CLASSES, hidden=(hidden,)), federation(point.population)
    algorithm = ALGORITHMS[point.algorithm](learning_rate=0.01, batch_size=BATCH_SIZE)
    federated = make_round(algorithm, model, point.population, participation=uniformly(point.cohort), layout=layout)
    at_rest = placement.of_state(layout)
    data, key = layout.place((data, jax.random.key(0)))
    state = jax.block_until_ready(layout.jit(placement.init(federated.init, layout), at_rest)(key, data))
    begun = time.perf_counter()
    step = layout.jit(federated.step, (at_rest, layout.sharding), donate_argnums=0).lower(state, data, key).compile()
    compile_seconds, seconds = time.perf_counter() - begun, []
    for _ in range(2 + point.rounds):
        begun = time.perf_counter()
        state, _ = jax.block_until_ready(step(state, data, key))
        seconds.append(time.perf_counter() - begun)
    median = float(np.median(seconds[2:]))
    steps = int(algorithm.local_update.num_steps(np.array(EXAMPLES_A_CLIENT)))
    memory = step.memory_analysis()
    return point._asdict() | {
        "parameters": tree.num_entries(state.server.shared["params"]),
        "layout": str(layout),
        "seconds_median": median,
        "seconds_min": min(seconds[2:]),
        "seconds_max": max(seconds[2:]),
        "client_steps_a_second": point.cohort * steps / median,
        "compile_seconds": compile_seconds,
        "temporary_mb": memory.temp_size_in_bytes / 1e6,
        "state_mb": tree.num_bytes(state.clients) / 1e6,
        "peak_rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3,
    }


def federation(population: int) -> ClientData:
    """Noise: a scaling study measures what a round costs, not what it learns."""
    generator = np.random.default_rng(0)
    inputs = generator.normal(size=(POOL, NUM_INPUTS)).astype(np.float32)
    labels = generator.integers(0, NUM_CLASSES, POOL).astype(np.int32)
    index = generator.integers(0, POOL, (population, EXAMPLES_A_CLIENT), dtype=np.int32)
    rows = Rows(index, np.full(population, EXAMPLES_A_CLIENT, np.int32))
    nothing = Rows(np.zeros((population, 1), np.int32), np.zeros(population, np.int32))
    return ClientData(Examples(inputs, labels), rows, nothing, nothing)


def main(text: str) -> None:
    point = Point(**json.loads(text))
    cores.show_as_devices(cores.count())
    print(json.dumps(measure(point, tuning.candidates(point.cohort)[0])))


if __name__ == "__main__":
    main(sys.argv[1])

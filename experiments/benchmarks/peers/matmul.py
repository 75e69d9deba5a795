"""The machine's yardstick: large float32 matrix products, on all cores."""

import jax
import jax.numpy as jnp
import numpy as np

from ..workloads import Workload
from . import Contender, ContenderSettings

SIZE = 2048
TIMES = 4
FLOP = TIMES * 2 * SIZE**3


def prepare(work: Workload, settings: ContenderSettings) -> Contender:
    """A round is TIMES products, one after the other; the work does not matter."""
    start = jnp.asarray(np.random.default_rng(0).standard_normal((SIZE, SIZE), np.float32) / np.sqrt(SIZE))
    product = jax.jit(lambda x, y: x @ y)
    value = product(start, start).block_until_ready()

    def round() -> None:
        nonlocal value
        value = start
        for _ in range(TIMES):
            value = product(value, start)
        value.block_until_ready()

    return Contender(round, lambda: [np.asarray(value)])

"""Where what grows with a federation lies between rounds."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_het.algorithm import Algorithm
from fedjax_het.data.federation import Federation
from fedjax_het.engine.parallel.layout import Layout
from fedjax_het.engine.parallel.runs import Axes, Sweep, map_over_runs
from fedjax_het.engine.round.participation import Participation
from fedjax_het.engine.round.program import Round, make_round
from fedjax_het.types import Array, Key, Model

AUTO = "auto"
CLIENT_STATES = (AUTO, "device", "host", "disk")
EXAMPLES = (AUTO, "device", "stream")


class OffloadPolicy(NamedTuple):
    """client_states: on the device, in host memory, or in a file.

    examples: on the device, or in host memory, or wherever their arrays map to, from where each round's are copied.
    """

    client_states: str
    examples: str

    def __str__(self) -> str:
        return f"client states: {self.client_states}, examples: {self.examples}"


ALL_ON_DEVICE = OffloadPolicy("device", "device")


@dataclass(frozen=True)
class RunSpec:
    """An algorithm or a sweep over its hyper-parameters, a model and a federation; so many rounds, at most `block` in
    one call.

    Runs are an array axis: the sweep's i-th values with seeds[i], seeds[i] + 1, ..., num_seeds of them, then the next.
    Where the sweep has no values, `seeds` alone tell how many runs there are.
    """

    sweep: Sweep
    model: Model
    federation: Federation
    participation: Participation
    rounds: int
    block: int
    seeds: tuple[int, ...] = (0,)
    num_seeds: int = 1
    personal_on_test: bool = False

    @property
    def algorithm(self) -> Algorithm:
        """The first of the sweep; the others have the same slots."""
        return self.sweep.algorithms[0]

    @property
    def num_runs(self) -> int:
        return len(self.seeds) * self.num_seeds

    @property
    def runs_at_once(self) -> int:
        """How many runs are under way at a time.

        On a CPU those of several values or first seeds go one after another: it multiplies a batch of matrices no
        faster, and there may be many.
        """
        is_one_by_one = len(self.seeds) > 1 and jax.default_backend() == "cpu"
        return 1 if is_one_by_one else self.num_runs

    @property
    def num_clients(self) -> int:
        return self.federation.num_clients

    @property
    def cohort_size(self) -> int:
        return self.participation.size(self.num_clients)

    @property
    def most_examples(self) -> int:
        """For training and validation, in the largest cohorts that the runs could draw."""
        data = self.federation.data
        counts = np.sort(np.asarray(data.train.count) + np.asarray(data.valid.count))
        return self.num_runs * int(counts[-self.cohort_size :].sum())

    def keys(self) -> Key:
        """[num_runs]"""
        return jax.vmap(jax.random.key)((jnp.array(self.seeds)[:, None] + jnp.arange(self.num_seeds)).reshape(-1))

    def hyper_parameters(self) -> dict[str, Array]:
        """What the runs differ in besides the seed, leaves [num_runs]; {} for a single algorithm."""
        return self.sweep.hyper_parameters(self.num_seeds)

    def round(self, layout: Layout, algorithm: Algorithm | None = None) -> Round:
        """The round of this algorithm, by default the first of the sweep."""
        return make_round(
            algorithm or self.algorithm,
            self.model,
            self.num_clients,
            num_training=int(np.count_nonzero(self.federation.data.train.count)),
            participation=self.participation,
            layout=layout,
            prepare=self.federation.prepare,
            augment=self.federation.augment,
        )

    def map_over_runs(self, function: Callable, axes: Axes) -> Callable:
        """See `runs.over_runs`."""
        return map_over_runs(function, axes, self.num_runs, self.runs_at_once)

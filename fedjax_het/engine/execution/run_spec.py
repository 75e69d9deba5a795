"""Where what grows with a federation lies between rounds."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_het.algorithm import Algorithm
from fedjax_het.data.federation import Federation
from fedjax_het.engine.parallel.layout import Layout
from fedjax_het.engine.parallel.runs import map_over_runs
from fedjax_het.engine.round.participation import Participation
from fedjax_het.engine.round.program import Round, make_round
from fedjax_het.types import Key, Model

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
    """Algorithms, a model and a federation; so many rounds, at most `block` in one call.

    A run is an algorithm with a seed: algorithm i with seeds[i], seeds[i] + 1, ..., num_seeds of them. Runs are an
    array axis, an algorithm's beside each other.
    """

    algorithms: tuple[Algorithm, ...]
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
        """The first; the others have the same slots."""
        return self.algorithms[0]

    @property
    def num_runs(self) -> int:
        return len(self.algorithms) * self.num_seeds

    def split_by_algorithm(self) -> "list[RunSpec]":
        """A job for each algorithm alone."""
        each = zip(self.algorithms, self.seeds, strict=True)
        return [replace(self, algorithms=(algorithm,), seeds=(seed,)) for algorithm, seed in each]

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

    def round(self, layout: Layout) -> Round:
        return make_round(
            self.algorithm,
            self.model,
            self.num_clients,
            num_training=int(np.count_nonzero(self.federation.data.train.count)),
            participation=self.participation,
            layout=layout,
            prepare=self.federation.prepare,
            augment=self.federation.augment,
        )

    def map_over_runs(self, functions: Sequence[Callable], axes: tuple[int | None, ...]) -> Callable:
        """See `runs.over_runs`.   functions: one an algorithm."""
        return map_over_runs(functions, self.num_seeds, axes)

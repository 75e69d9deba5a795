"""What is to be trained, before anything is said about where it runs."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
import numpy as np
from jax.stages import Compiled

from fedjax_het.algorithm import Algorithm
from fedjax_het.data.federation import Federation
from fedjax_het.engine.layout import Layout
from fedjax_het.engine.participation import Participation
from fedjax_het.engine.round import Round, make_round
from fedjax_het.engine.runs import over_runs
from fedjax_het.types import Key, Model, PyTree

_LEVEL = "xla_backend_optimization_level"


@dataclass(frozen=True)
class Job:
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

    def of_each(self) -> "list[Job]":
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

    def over_runs(self, functions: Sequence[Callable], axes: tuple[int | None, ...]) -> Callable:
        """See `runs.over_runs`.   functions: one an algorithm."""
        return over_runs(functions, self.num_seeds, axes)


def everywhere(values: PyTree, layout: Layout) -> PyTree:
    """Shapes in place of arrays that lie on every device: what is compiled for them needs no memory yet."""
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=layout.sharding), values)


def compiled(
    function: Callable, layout: Layout, *shapes: PyTree, results: PyTree = None, donate: tuple[int, ...] = ()
) -> Compiled:
    """The program for arguments of these shapes.   results: where they lie, a prefix tree; None is on every device."""
    results = layout.sharding if results is None else results
    return layout.jit(function, results, donate_argnums=donate).lower(*shapes).compile()


def compiled_for_once(function: Callable, layout: Layout, results: PyTree) -> Callable:
    """`layout.jit` of what makes a run's first state: quick to compile rather than quick.

    Drawing initial weights is a kernel a layer, and on CPUs LLVM spends longer on them than on the round (3.1 s for a
    ResNet-18, 3.2 for the smallest U-Net; 1.4 and .6 so, and the same bits). Other backends know no such level, and one
    in XLA_FLAGS is the user's choice.
    """
    is_free = jax.default_backend() == "cpu" and _LEVEL not in os.environ.get("XLA_FLAGS", "")
    return layout.jit(function, results, **({"compiler_options": {_LEVEL: 1}} if is_free else {}))

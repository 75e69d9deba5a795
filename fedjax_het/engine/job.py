"""What is to be trained, before anything is said about where it runs."""

from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jax.stages import Compiled

from fedjax_het.algorithm import Algorithm
from fedjax_het.data.federation import Federation
from fedjax_het.engine.layout import Layout
from fedjax_het.engine.participation import Participation
from fedjax_het.engine.round import Round, make_round
from fedjax_het.types import Key, Model, PyTree


@dataclass(frozen=True)
class Job:
    """An algorithm, a model and a federation; so many rounds, at most `block` in one call, for each of the seeds."""

    algorithm: Algorithm
    model: Model
    federation: Federation
    participation: Participation
    rounds: int
    block: int
    seed: int = 0
    num_seeds: int = 1
    personal_on_test: bool = False

    @property
    def num_clients(self) -> int:
        return self.federation.num_clients

    @property
    def cohort_size(self) -> int:
        return self.participation.size(self.num_clients)

    @property
    def most_examples(self) -> int:
        """For training and validation, in the largest cohorts that the seeds could draw."""
        data = self.federation.data
        counts = np.sort(np.asarray(data.train.count) + np.asarray(data.valid.count))
        return self.num_seeds * int(counts[-self.cohort_size :].sum())

    def keys(self) -> Key:
        """[num_seeds]"""
        return jax.vmap(jax.random.key)(self.seed + jnp.arange(self.num_seeds))

    def round(self, layout: Layout) -> Round:
        return make_round(
            self.algorithm,
            self.model,
            self.num_clients,
            participation=self.participation,
            layout=layout,
            prepare=self.federation.prepare,
            augment=self.federation.augment,
        )

    def over_seeds(self, function: Callable, axes: tuple[int | None, ...]) -> Callable:
        """vmap over seeds; a single seed is not vmapped, which would cost it a batched program."""
        if self.num_seeds > 1:
            return jax.vmap(function, in_axes=axes)

        def single(*arguments: PyTree) -> PyTree:
            first = [
                jax.tree.map(lambda x: x[0], argument) if axis == 0 else argument
                for argument, axis in zip(arguments, axes, strict=True)
            ]
            return jax.tree.map(lambda x: x[None], function(*first))

        return single


def everywhere(values: PyTree, layout: Layout) -> PyTree:
    """Shapes in place of arrays that lie on every device: what is compiled for them needs no memory yet."""
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=layout.sharding), values)


def compiled(
    function: Callable, layout: Layout, *shapes: PyTree, results: PyTree = None, donate: tuple[int, ...] = ()
) -> Compiled:
    """The program for arguments of these shapes.   results: where they lie, a prefix tree; None is on every device."""
    results = layout.sharding if results is None else results
    return layout.jit(function, results, donate_argnums=donate).lower(*shapes).compile()

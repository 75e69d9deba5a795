"""The axis of runs: seeds and algorithms in one program."""

from collections.abc import Callable, Sequence

import jax
import numpy as np

from fedjax_het.alike import as_one
from fedjax_het.errors import Unlike
from fedjax_het.types import PyTree

Axes = tuple[int | None, ...]
"""0 for an argument with an axis of runs, None for one that they share."""


def map_over_runs(functions: Sequence[Callable], num_seeds: int, axes: Axes) -> Callable:
    """(arguments, their leaves [runs, ...] where `axes` has 0) -> leaves [runs, ...], functions[i] for its num_seeds.

    Runs are vmapped; a single one has no axis inside, which would cost it a batched program. On a CPU those of several
    algorithms go one after another: it multiplies a batch of matrices no faster, and there may be many.
    Raises Unlike, when it is traced, for functions that differ in more than numbers.
    """
    if len(functions) * num_seeds == 1:
        return _without_run_axis(functions[0], axes)
    if len(functions) == 1:
        return jax.vmap(functions[0], axes)
    over = _map_in_turn if count_concurrent_runs(len(functions), num_seeds) == 1 else jax.vmap
    together = over(_told(as_one(functions)), (0, *axes))
    which = np.repeat(np.arange(len(functions), dtype=np.int32), num_seeds)
    return lambda *arguments: together(which, *arguments)


def count_concurrent_runs(num_algorithms: int, num_seeds: int) -> int:
    """How many runs are under way at a time, see `over_runs`."""
    is_one_by_one = num_algorithms > 1 and jax.default_backend() == "cpu"
    return 1 if is_one_by_one else num_algorithms * num_seeds


def _without_run_axis(function: Callable, axes: Axes) -> Callable:
    def single(*arguments: PyTree) -> PyTree:
        pairs = zip(arguments, axes, strict=True)
        mine = (jax.tree.map(lambda x: x[0], each) if axis == 0 else each for each, axis in pairs)
        return jax.tree.map(lambda x: x[None], function(*mine))

    return single


def _map_in_turn(function: Callable, axes: Axes) -> Callable:
    """jax.vmap's meaning, as a loop."""

    def mapped(*arguments: PyTree) -> PyTree:
        of_runs = {i: each for i, (each, axis) in enumerate(zip(arguments, axes, strict=True)) if axis == 0}

        def one(mine: dict[int, PyTree]) -> PyTree:
            return function(*(mine.get(i, each) for i, each in enumerate(arguments)))

        return jax.lax.map(one, of_runs)

    return mapped


def _told(together: Callable) -> Callable:
    """The same, and an Unlike speaks of algorithms."""

    def one(*arguments: PyTree) -> PyTree:
        try:
            return together(*arguments)
        except Unlike as error:
            groups = "; ".join(", ".join(map(str, group)) for group in error.groups)
            raise Unlike(
                "algorithm: only those that differ in nothing but numbers can be trained side by side. These can, by "
                f"their places: {groups}. Train each of these groups by itself.",
                error.groups,
            ) from error

    return one

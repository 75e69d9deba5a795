"""Sweeps: runs with several seeds and values of hyper-parameters as an array axis of one program."""

import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial, wraps
from types import MappingProxyType

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_het.algorithm import Algorithm
from fedjax_het.errors import InputError, shorten
from fedjax_het.types import Array, PyTree

Axes = tuple[int | None, ...]
"""0 for an argument with an axis of runs, None for one that they share."""


class Sweep:
    """An algorithm with several values of its hyper-parameters, which are trained side by side in one program.

        Sweep(fedprox, {"mu": [0.01, 0.1]})
        Sweep(lambda mu: replace(fedprox(mu=mu), sharing=batch_norms), {"mu": [0.01, 0.1]})

    The values are an argument of the compiled program: it is compiled once, however many there are, and not again for
    others. So the factory is also called with JAX tracers, and what it builds must compute with them; a value that
    decides about the program itself (a batch size, `if mu == 0`) cannot be swept.
    """

    def __init__(self, factory: Callable[..., Algorithm], values: Mapping[str, Sequence[float]] = MappingProxyType({})):
        """Build the algorithm with each of the values, so that the factory can refuse them.

        Args:
            factory: A function of keyword arguments to an Algorithm.
            values: A list for each hyper-parameter; the i-th run has the i-th entry of every list. Without any, the
                sweep is the one algorithm that the factory builds.

        Raises:
            InputError: For lists that are empty or of different lengths, entries that are no numbers, values that the
                factory refuses, and a factory that builds something else.
        """
        self.factory, self.values = factory, {name: np.asarray(each).tolist() for name, each in values.items()}
        lengths = {name: len(each) for name, each in self.values.items()}
        if len(set(lengths.values())) > 1 or 0 in lengths.values():
            raise InputError(f"values: each hyper-parameter needs as many as the others, at least one, not {lengths}.")
        for name, each in self.values.items():
            if wrong := [value for value in each if isinstance(value, bool) or not isinstance(value, int | float)]:
                raise InputError(f"{name}: a sweep is over numbers, not {wrong[0]!r}. Run a simulation for each value.")
        combinations = [dict(zip(self.values, each, strict=True)) for each in zip(*self.values.values(), strict=True)]
        self.algorithms = tuple(factory(**each) for each in combinations or [{}])
        if others := [each for each in self.algorithms if not isinstance(each, Algorithm)]:
            raise InputError(
                f"algorithm: must be an Algorithm, or a Sweep(factory, values) whose factory builds one, not "
                f"{shorten(others[0])}."
            )

    def build(self, hyper_parameters: Mapping[str, Array]) -> Algorithm:
        """Build the algorithm from hyper-parameters, usually tracers; {} returns the first algorithm."""
        return self.factory(**hyper_parameters) if hyper_parameters else self.algorithms[0]

    def hyper_parameters(self, num_seeds: int = 1) -> dict[str, Array]:
        """The values as arrays [values * num_seeds], each value num_seeds times.

        They are weakly typed float64 (or int64), JAX's types of Python numbers, whether or not the process computes in
        float64, so that a run is the same as with a Python number: they take the type of what they are combined with,
        bfloat16 stays bfloat16, and inside `in_double` 0.7 of 10 clients are 7, which they are not with float32's 0.7.
        """
        with jax.enable_x64(True):
            return {
                name: jnp.stack([jnp.asarray(value) for value in each for _ in range(num_seeds)])
                for name, each in self.values.items()
            }

    def restrict(self, *names: str) -> "Sweep":
        """A sweep over these hyper-parameters alone; the others have their first value."""
        others = {name: each[0] for name, each in self.values.items() if name not in names}
        return Sweep(partial(self.factory, **others), {name: self.values[name] for name in names})


def map_over_runs(function: Callable, axes: Axes, num_runs: int, runs_at_once: int) -> Callable:
    """Map a function over the axis of runs, vectorized or sequentially.

    A single run is not vectorized: inside, its arrays have no axis of runs.

    Args:
        function: A function of one run's arguments.
        axes: 0 for each argument with an axis of runs, None for one that all runs share.
        num_runs: The number of runs.
        runs_at_once: 1 maps sequentially.

    Returns:
        A function of arguments [runs, ...] to results [runs, ...].
    """
    function = without_dtype_warnings(function)
    if num_runs == 1:
        return _without_run_axis(function, axes)
    return _map_sequentially(function, axes) if runs_at_once == 1 else jax.vmap(function, axes)


def without_dtype_warnings(function: Callable) -> Callable:
    """Silence JAX's warning that hyper-parameters (see `Sweep.hyper_parameters`) are converted to float32."""

    @wraps(function)
    def traced(*arguments: PyTree) -> PyTree:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Explicitly requested dtype (float|int)64", UserWarning)
            return function(*arguments)

    return traced


def _without_run_axis(function: Callable, axes: Axes) -> Callable:
    def single(*arguments: PyTree) -> PyTree:
        pairs = zip(arguments, axes, strict=True)
        own = (jax.tree.map(lambda x: x[0], each) if axis == 0 else each for each, axis in pairs)
        return jax.tree.map(lambda x: x[None], function(*own))

    return single


def _map_sequentially(function: Callable, axes: Axes) -> Callable:
    """The results of jax.vmap, computed by a loop."""

    def mapped(*arguments: PyTree) -> PyTree:
        run_arguments = {i: each for i, (each, axis) in enumerate(zip(arguments, axes, strict=True)) if axis == 0}

        def one(own: dict[int, PyTree]) -> PyTree:
            return function(*(own.get(i, each) for i, each in enumerate(arguments)))

        return jax.lax.map(one, run_arguments)

    return mapped

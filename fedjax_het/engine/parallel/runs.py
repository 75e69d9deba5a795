"""Sweeps: runs with several seeds and hyperparameter values as an array axis of one program."""

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial, wraps
from types import MappingProxyType, SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.stages import Compiled

from fedjax_het.algorithm import Algorithm
from fedjax_het.errors import InputError, shorten
from fedjax_het.types import Array, HostArray, PyTree

Axes = tuple[int | None, ...]
"""0 for an argument with a run axis, None for one that all runs share."""


class Sweep:
    """An algorithm with several hyperparameter values, trained side by side in one program.

        Sweep(fedprox, {"mu": [0.01, 0.1]})
        Sweep(lambda mu: replace(fedprox(mu=mu), sharing=batch_norms), {"mu": [0.01, 0.1]})

    The values are an argument of the compiled program, which is compiled once for any number of values and reused for
    other values. The factory is therefore also called with JAX tracers, and the algorithm must compute with them.
    Values that the program itself depends on (a batch size, `if mu == 0`) cannot be swept.
    """

    def __init__(self, factory: Callable[..., Algorithm], values: Mapping[str, Sequence[float]] = MappingProxyType({})):
        """Build the algorithm with each value, so that the factory can validate it.

        Args:
            factory: A function from keyword arguments to an Algorithm.
            values: A list per hyperparameter; the i-th run uses the i-th entry of every list. If empty, the sweep
                consists of the single algorithm that the factory builds.

        Raises:
            InputError: Lists are empty or differ in length, entries are not numbers, the factory rejects a value, or
                it does not return an Algorithm.
        """
        self.factory, self.values = factory, {name: np.asarray(numbers).tolist() for name, numbers in values.items()}
        lengths = {name: len(numbers) for name, numbers in self.values.items()}
        if len(set(lengths.values())) > 1 or 0 in lengths.values():
            raise InputError(f"values: hyperparameters need the same number of values, at least one, got {lengths}.")
        for name, numbers in self.values.items():
            if wrong := [value for value in numbers if isinstance(value, bool) or not isinstance(value, int | float)]:
                raise InputError(f"{name}: sweeps need numbers, got {wrong[0]!r}. Run a simulation for each value.")
        combinations = [dict(zip(self.values, row, strict=True)) for row in zip(*self.values.values(), strict=True)]
        self.algorithms = tuple(factory(**combination) for combination in combinations or [{}])
        if others := [algorithm for algorithm in self.algorithms if not isinstance(algorithm, Algorithm)]:
            raise InputError(
                f"algorithm: expected an Algorithm, or a Sweep(factory, values) whose factory builds one, got "
                f"{shorten(others[0])}."
            )

    def build(self, hyper_parameters: Mapping[str, Array]) -> Algorithm:
        """Build the algorithm from hyperparameters, usually tracers; {} returns the first algorithm."""
        return self.factory(**hyper_parameters) if hyper_parameters else self.algorithms[0]

    def hyper_parameters(self, num_seeds: int = 1) -> dict[str, Array]:
        """Return the values as arrays [values * num_seeds], each value repeated num_seeds times.

        The arrays are weakly typed float64 (or int64), like Python numbers in JAX, even if the process computes in
        float32. A run is therefore the same as with a Python number: bfloat16 stays bfloat16, and inside `in_double`
        0.7 of 10 clients are 7, which float32's 0.7 would not give.
        """
        with jax.enable_x64(True):
            return {
                name: jnp.stack([jnp.asarray(value) for value in numbers for _ in range(num_seeds)])
                for name, numbers in self.values.items()
            }

    def restrict(self, *names: str) -> "Sweep":
        """Return a sweep over these hyperparameters only; the others keep their first value."""
        others = {name: numbers[0] for name, numbers in self.values.items() if name not in names}
        return Sweep(partial(self.factory, **others), {name: self.values[name] for name in names})


def map_over_runs(function: Callable, axes: Axes, num_runs: int) -> Callable:
    """Vectorize a function over the run axis.

    A single run is not vectorized: inside the function, its arrays have no run axis.

    Args:
        function: A function of one run's arguments.
        axes: 0 for each argument with a run axis, None for one that all runs share.
        num_runs: The number of runs.

    Returns:
        A function from arguments [runs, ...] to results [runs, ...].
    """
    function = without_dtype_warnings(function)
    return _without_run_axis(function, axes) if num_runs == 1 else jax.vmap(function, axes)


def without_dtype_warnings(function: Callable) -> Callable:
    """Silence JAX's warning that hyperparameters (see `Sweep.hyper_parameters`) are converted to float32."""

    @wraps(function)
    def traced(*arguments: PyTree) -> PyTree:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Explicitly requested dtype (float|int)64", UserWarning)
            return function(*arguments)

    return traced


def _without_run_axis(function: Callable, axes: Axes) -> Callable:
    def single(*arguments: PyTree) -> PyTree:
        pairs = zip(arguments, axes, strict=True)
        own = (jax.tree.map(lambda x: x[0], argument) if axis == 0 else argument for argument, axis in pairs)
        return jax.tree.map(lambda x: x[None], function(*own))

    return single


def one_run(values: PyTree) -> PyTree:
    """The first run of arrays, or its shapes; the run axis has length 1."""

    def cut(x: Array | jax.ShapeDtypeStruct) -> Array | jax.ShapeDtypeStruct:
        if isinstance(x, jax.Array):
            return _take_run(x, 0)
        return jax.ShapeDtypeStruct((1, *x.shape[1:]), x.dtype, sharding=getattr(x, "sharding", None))

    return jax.tree.map(cut, values)


def shapes_of_runs(values: PyTree, num_runs: int) -> PyTree:
    """The shapes of several runs, [runs, ...], given those of one, without the axis."""
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct((num_runs, *x.shape), x.dtype), values)


@jax.jit
def _take_run(values: PyTree, run: int) -> PyTree:
    return jax.tree.map(lambda x: jax.lax.dynamic_slice_in_dim(x, run, 1), values)


class RunLoop:
    """A program of one run as a program of several runs on CPUs, which are computed one after another.

    The compiled program does not depend on the number of runs, and a run has the same bits beside any others. Runs are
    cut and joined in NumPy, where nothing is compiled and a call takes half as long.
    """

    def __init__(self, compiled: Compiled, axes: Axes, num_runs: int):
        """
        Args:
            compiled: The program of one run; arguments and results have a run axis of length 1.
            axes: 0 for each argument with a run axis, None for one that all runs share.
            num_runs: The number of runs.
        """
        self._compiled, self._axes, self._num_runs = compiled, axes, num_runs

    def __call__(self, *arguments: PyTree) -> PyTree:
        has_runs = [axis == 0 for axis in self._axes]
        values = [jax.tree.map(_to_host, x) if own else x for x, own in zip(arguments, has_runs, strict=True)]
        joined = result = None
        for run in range(self._num_runs):
            result = self._compiled(*(_cut_run(x, run) if own else x for x, own in zip(values, has_runs, strict=True)))
            if joined is None:
                joined = jax.tree.map(lambda x: allocate((self._num_runs, *x.shape[1:]), x.dtype), result)
            for runs, leaf in zip(jax.tree.leaves(joined), jax.tree.leaves(result), strict=True):
                runs[run] = np.asarray(leaf)[0]
        return jax.device_put(joined, jax.tree.map(lambda x: x.sharding, result))

    def memory_analysis(self) -> SimpleNamespace:
        """The bytes of `Compiled.memory_analysis` that `cost.temporary_bytes` reads."""
        memory: Any = self._compiled.memory_analysis()
        return SimpleNamespace(
            temp_size_in_bytes=memory.temp_size_in_bytes + memory.output_size_in_bytes,  # those of one run
            output_size_in_bytes=self._num_runs * memory.output_size_in_bytes,
            alias_size_in_bytes=0,
        )


Executable = Compiled | RunLoop
"""A compiled program of all runs."""


def _to_host(values: HostArray) -> HostArray:
    """A view on the host; keys and weakly typed numbers have none, and stay on the device."""
    is_plain = isinstance(values, np.ndarray) or not getattr(values, "weak_type", True)
    return np.asarray(values) if is_plain else values


def _cut_run(values: PyTree, run: int) -> PyTree:
    return jax.tree.map(lambda x: x[run : run + 1] if isinstance(x, np.ndarray) else _take_run(x, run), values)


def allocate(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """An array without values at a multiple of 64 bytes, which JAX shares instead of copying."""
    size = math.prod(shape) * dtype.itemsize
    memory = np.empty(size + 64, np.uint8)
    start = -memory.ctypes.data % 64
    return memory[start : start + size].view(dtype).reshape(shape)

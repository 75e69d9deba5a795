"""Ahead-of-time compilation of programs for a layout."""

import logging
import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import wraps
from typing import Any, NamedTuple

import jax
import jaxlib
from jax.extend.core import ClosedJaxpr, Jaxpr, jaxpr_as_fun
from jax.stages import Wrapped

from fedjax_het._internal.cache_folder import cache_folder
from fedjax_het._internal.target_platform import target_platform
from fedjax_het.engine.parallel import arithmetic_call, tree_arithmetic
from fedjax_het.engine.parallel.layout import Layout
from fedjax_het.engine.parallel.runs import Axes, Executable, RunLoop, one_run
from fedjax_het.types import PyTree

COMPILATION_LOG = logging.getLogger("fedjax_het.compilation")
"""A message at level INFO, such as "compiling rounds, chunked(1)", before the compilation of a large program."""

MIN_KEPT_SECONDS = 0.2
"""The compilation time of the fastest programs that `use_program_cache` keeps."""

_THREADS = ThreadPoolExecutor(os.cpu_count(), thread_name_prefix="compilation")
_QUICK_ON_TPU = {"exec_time_optimization_effort": -0.5}  # between -1 and 1
# The older emitters compile a kernel in half the time; later versions of XLA refuse the name of the option.
_QUICK_ON_CPU = {"xla_cpu_use_fusion_emitters": False} if jaxlib.__version__.startswith("0.10.") else {}


def use_program_cache() -> None:
    """Keep compiled programs in the user's cache folder, unless JAX has been given another folder for them."""
    if not jax.config.jax_compilation_cache_dir:  # pyrefly: ignore[missing-attribute]: JAX defines it at import
        jax.config.update("jax_compilation_cache_dir", str(cache_folder() / "programs"))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", MIN_KEPT_SECONDS)


def replicated_shapes(values: PyTree, layout: Layout) -> PyTree:
    """The shapes of values to be replicated on all devices, for compilation before they take memory."""
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=layout.sharding), values)


class Program(NamedTuple):
    """A jitted function and its arguments or their shapes."""

    name: str  # in the log; "" for a small program, which is not logged
    function: Wrapped
    arguments: tuple[PyTree, ...]
    axes: Axes = ()  # of the runs, if `function` computes one run
    num_runs: int = 1  # of the arguments, if `function` computes one run

    def begin_compilation(self) -> Future[Executable]:
        """Lower the function, and compile it in another thread, beside other programs.

        Returns:
            The compiled program, when it is done.
        """
        if self.name:
            COMPILATION_LOG.info("compiling %s", self.name)
        if self.num_runs == 1:
            return _THREADS.submit(self.function.lower(*self.arguments).compile)
        pairs = zip(self.arguments, self.axes, strict=True)
        lowered = self.function.lower(*(one_run(argument) if axis == 0 else argument for argument, axis in pairs))
        return _THREADS.submit(lambda: RunLoop(lowered.compile(), self.axes, self.num_runs))


def jit_program(
    function: Callable, layout: Layout, results: PyTree = None, donate: tuple[int, ...] = (), *, is_quick: bool = False
) -> Wrapped:
    """`layout.jit`, by default with replicated results.

    Args:
        function: The function.
        layout: The layout of the devices.
        results: The shardings of the results, a prefix tree; None: replicated.
        donate: The indices of arguments to donate.
        is_quick: Whether compilation should be fast because the function runs rarely, like evaluations, see
            `_quick_compiler_options`.

    Returns:
        The jitted function.
    """
    results = layout.sharding if results is None else results
    options = _quick_compiler_options() if is_quick else {}
    function = function if is_quick else fuse_arithmetic(function, layout)
    return layout.jit(function, results, donate_argnums=donate, compiler_options=options)


def fuse_arithmetic(function: Callable, layout: Layout) -> Callable:
    """The same function with `tree_arithmetic.fuse`, on CPUs with its kernel."""

    @wraps(function)
    def fused(*arguments: PyTree) -> PyTree:
        if arithmetic_call.explain_missing_kernel():
            return function(*arguments)
        run, constants = _retrace(function, lambda jaxpr: tree_arithmetic.fuse(jaxpr, layout), *arguments)
        return run(constants, *arguments)

    return fused


def _retrace(
    function: Callable, rewrite: Callable[[Jaxpr], Jaxpr], *arguments: PyTree
) -> tuple[Callable[..., PyTree], list]:
    """Trace a function, and rewrite the trace: (a function of its constants and its arguments, the constants)."""
    traced, shapes = jax.make_jaxpr(function, return_shape=True)(*arguments)
    rewritten = rewrite(traced.jaxpr)

    def run(constants: list, *arguments: PyTree) -> PyTree:
        values = jaxpr_as_fun(ClosedJaxpr(rewritten, constants))(*jax.tree.leaves(arguments))
        return jax.tree.unflatten(jax.tree.structure(shapes), values)

    return run, traced.consts


def _quick_compiler_options(**more_on_cpu: Any) -> dict[str, Any]:
    """Options for programs that run rarely, and more for CPUs; those that the user has set are respected.

    On TPUs, most of the compilation time is the search for the fastest convolutions. JAX 0.12 has no such effort.
    """
    platform, flags = target_platform(), os.environ.get("XLA_FLAGS", "")
    if platform == "cpu":
        return {name: value for name, value in (_QUICK_ON_CPU | more_on_cpu).items() if name not in flags}
    has_effort = getattr(jax.config, "jax_exec_time_optimization_effort", 0) != 0
    return {} if has_effort or platform != "tpu" else _QUICK_ON_TPU


def jit_initializer(
    function: Callable, layout: Layout, results: PyTree, *arguments: PyTree
) -> tuple[Wrapped, tuple[PyTree, ...]]:
    """`layout.jit` for the program that initializes a run, with little optimization on CPUs.

    The initial weights of each layer are a separate kernel, and on CPUs LLVM takes longer for these than for the round
    (3.1 s for a ResNet-18, 3.2 s for the smallest U-Net). Optimization level 1 takes 1.4 s and 0.6 s, with the same
    weights up to rounding. A level set in XLA_FLAGS is respected. Beyond that, it counts as a rare program.

    Args:
        function: The function.
        layout: The layout of the devices.
        results: The shardings of the results, a prefix tree.
        *arguments: The arguments of the function, or their shapes.

    Returns:
        (The jitted program, its arguments: the constants of the function, such as pretrained weights, before its own.)
    """
    options = _quick_compiler_options(xla_backend_optimization_level=1)
    initialize, constants = _retrace(function, lambda jaxpr: jaxpr, *arguments)
    return layout.jit(initialize, results, compiler_options=options), (constants, *arguments)

"""Ahead-of-time compilation of programs for a layout."""

import logging
import os
from collections.abc import Callable

import jax
from jax.stages import Compiled, Wrapped

from fedjax_het._internal.target_platform import target_platform
from fedjax_het.engine.parallel.layout import Layout
from fedjax_het.types import PyTree

COMPILATION_LOG = logging.getLogger("fedjax_het.compilation")
"""A message at level INFO, such as "compiling rounds, chunked(1)", before the compilation of a large program."""

_OPTIMIZATION_LEVEL = "xla_backend_optimization_level"


def replicated_shapes(values: PyTree, layout: Layout) -> PyTree:
    """The shapes of values that will be replicated on all devices, to compile for them before they take memory."""
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=layout.sharding), values)


def jit_program(function: Callable, layout: Layout, results: PyTree = None, donate: tuple[int, ...] = ()) -> Wrapped:
    """`layout.jit`, by default with replicated results; arguments as for `compile_program`."""
    results = layout.sharding if results is None else results
    return layout.jit(function, results, donate_argnums=donate)


def compile_program(
    function: Callable, layout: Layout, *shapes: PyTree, results: PyTree = None, donate: tuple[int, ...] = ()
) -> Compiled:
    """Compile a function.

    Args:
        function: The function.
        layout: The layout of the devices.
        *shapes: The shapes of its arguments.
        results: The shardings of the results, a prefix tree; None replicates them.
        donate: The indices of the arguments whose memory the results may reuse.

    Returns:
        The compiled program.
    """
    return jit_program(function, layout, results, donate).lower(*shapes).compile()


def jit_initializer(function: Callable, layout: Layout, results: PyTree) -> Wrapped:
    """`layout.jit` for the program that initializes a run, with little optimization on CPUs.

    Each layer's initial weights are a kernel of their own, and on CPUs LLVM takes longer for them than for the round
    (3.1 s for a ResNet-18, 3.2 s for the smallest U-Net). With optimization level 1 it takes 1.4 s and 0.6 s, and the
    weights are the same up to rounding. Other backends have no such option, and a level in XLA_FLAGS is respected.
    """
    is_reducible = target_platform() == "cpu" and _OPTIMIZATION_LEVEL not in os.environ.get("XLA_FLAGS", "")
    return layout.jit(function, results, **({"compiler_options": {_OPTIMIZATION_LEVEL: 1}} if is_reducible else {}))

"""TODO."""

import os
from collections.abc import Callable

import jax
from jax.stages import Compiled

from fedjax_het.engine.parallel.layout import Layout
from fedjax_het.types import PyTree

_OPTIMIZATION_LEVEL = "xla_backend_optimization_level"


def replicated_shapes(values: PyTree, layout: Layout) -> PyTree:
    """Shapes in place of arrays that lie on every device: what is compiled for them needs no memory yet."""
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=layout.sharding), values)


def compile_program(
    function: Callable, layout: Layout, *shapes: PyTree, results: PyTree = None, donate: tuple[int, ...] = ()
) -> Compiled:
    """The program for arguments of these shapes.   results: where they lie, a prefix tree; None is on every device."""
    results = layout.sharding if results is None else results
    return layout.jit(function, results, donate_argnums=donate).lower(*shapes).compile()


def jit_initializer(function: Callable, layout: Layout, results: PyTree) -> Callable:
    """`layout.jit` of what makes a run's first state: quick to compile rather than quick.

    Drawing initial weights is a kernel a layer, and on CPUs LLVM spends longer on them than on the round (3.1 s for a
    ResNet-18, 3.2 for the smallest U-Net; 1.4 and .6 so, and the same bits). Other backends know no such level, and one
    in XLA_FLAGS is the user's choice.
    """
    is_free = jax.default_backend() == "cpu" and _OPTIMIZATION_LEVEL not in os.environ.get("XLA_FLAGS", "")
    return layout.jit(function, results, **({"compiler_options": {_OPTIMIZATION_LEVEL: 1}} if is_free else {}))

"""Float64 for the few numbers that need it, whatever the process is set to."""

from collections.abc import Callable, Sequence

import jax
from jax.extend.core import ClosedJaxpr, Primitive, jaxpr_as_fun
from jax.interpreters import batching, mlir

from fedjax_het.types import Array


def in_double(function: Callable) -> Callable:
    """Run a function of arrays with float64 at hand, whatever the process is set to.

    A float32 Gram matrix loses every axis whose singular value is under 3e-4 of the largest; in float64 that limit is
    1e-8.

    `jax.enable_x64` holds while Python runs, and Python sees a function of a program three times: when it is traced,
    when it is vmapped, and when it is lowered, long after the context of the trace has ended. Operations that JAX
    lowers by tracing Python code of its own (argmin, cumulative sums) would then make float32 of what was traced as
    float64. So the traced function is one operation of the program, `_DOUBLE`, which enters the context each time: JAX
    calls nothing but a primitive's own rules when it lowers, so that no wrapper made of public transformations would
    do. What the function closes over becomes an argument, so that a hyper-parameter may be batched too.
    """

    def call(*args):
        with jax.enable_x64(True):
            closed, shapes = jax.make_jaxpr(function, return_shape=True)(*args)
        leaves = _DOUBLE.bind(*closed.consts, *jax.tree.leaves(args), program=_Program(closed))
        return jax.tree.unflatten(jax.tree.structure(shapes), leaves)

    return call


class _Program:
    """A traced function, hidden from JAX, which would take a primitive with a jaxpr inside for one that it may open."""

    def __init__(self, closed: ClosedJaxpr):
        self.jaxpr, self.num_consts, self.shapes = closed.jaxpr, len(closed.consts), closed.out_avals

    def __call__(self, *args: Array) -> list[Array]:
        """The results, with float64 at hand. args: what the function closes over, then its leaves."""
        consts, leaves = args[: self.num_consts], args[self.num_consts :]
        with jax.enable_x64(True):
            return jaxpr_as_fun(ClosedJaxpr(self.jaxpr, consts))(*leaves)


def _evaluate(*args: Array, program: _Program) -> list[Array]:
    return program(*args)


def _lower(context, *args, program: _Program):
    with jax.enable_x64(True):
        return mlir.lower_fun(program, multiple_results=True)(context, *args)


def _batch(args: Sequence[Array], axes: Sequence[int | None], *, program: _Program) -> tuple[list[Array], list[int]]:
    out = in_double(jax.vmap(program, in_axes=tuple(axes)))(*args)
    return out, [0] * len(out)


_DOUBLE = Primitive("in_double")
_DOUBLE.multiple_results = True
_DOUBLE.def_abstract_eval(lambda *args, program: program.shapes)
_DOUBLE.def_impl(_evaluate)
mlir.register_lowering(_DOUBLE, _lower)
batching.primitive_batchers[_DOUBLE] = _batch

"""Float64 for the few numbers that need it, whatever the process is set to."""

from collections.abc import Callable, Sequence

import jax
from jax.extend.core import ClosedJaxpr, Primitive
from jax.interpreters import batching, mlir

from fedjax_het.types import Array


def in_double(function: Callable) -> Callable:
    """Run a function of arrays with float64 at hand, whatever the process is set to.

    A float32 Gram matrix loses every axis whose singular value is under 3e-4 of the largest; in float64 that limit is
    1e-8.

    `jax.enable_x64` holds while Python runs, and Python sees a function of a program three times: when it is traced,
    when it is vmapped, and when it is lowered, long after the context of the trace has ended. Operations that JAX
    lowers by tracing Python code of its own (argmin, cumulative sums) would then make float32 of what was traced as
    float64. So the traced function is one operation of the program, `_DOUBLE`, which enters the context each time.
    What the function closes over becomes an argument, so that a hyper-parameter may be batched too.
    """

    def call(*args):
        with jax.enable_x64(True):
            closed, shapes = jax.make_jaxpr(function, return_shape=True)(*args)
        program = closed.jaxpr.replace(constvars=[], invars=[*closed.jaxpr.constvars, *closed.jaxpr.invars])
        leaves = _DOUBLE.bind(*closed.consts, *jax.tree.leaves(args), jaxpr=ClosedJaxpr(program, ()))
        return jax.tree.unflatten(jax.tree.structure(shapes), leaves)

    return call


def _evaluate(*args: Array, jaxpr: ClosedJaxpr) -> list[Array]:
    with jax.enable_x64(True):
        return jax.core.eval_jaxpr(jaxpr.jaxpr, (), *args)


def _lower(context, *args, jaxpr: ClosedJaxpr):
    with jax.enable_x64(True):
        return mlir.lower_fun(_evaluate, multiple_results=True)(context, *args, jaxpr=jaxpr)


def _batch(args: Sequence[Array], axes: Sequence[int | None], *, jaxpr: ClosedJaxpr) -> tuple[list[Array], list[int]]:
    def batched(*args: Array) -> list[Array]:
        return jax.vmap(lambda *one: _evaluate(*one, jaxpr=jaxpr), in_axes=tuple(axes))(*args)

    out = in_double(batched)(*args)
    return out, [0] * len(out)


_DOUBLE = Primitive("in_double")
_DOUBLE.multiple_results = True
_DOUBLE.def_abstract_eval(lambda *args, jaxpr: jaxpr.out_avals)
_DOUBLE.def_impl(_evaluate)
mlir.register_lowering(_DOUBLE, _lower)
batching.primitive_batchers[_DOUBLE] = _batch

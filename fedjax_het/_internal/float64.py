"""Float64 for the few numbers that need it, whatever the process is set to."""

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr, Primitive
from jax.interpreters import batching, mlir

from fedjax_het.types import Array, PyTree


class Float64RequiredError(RuntimeError):
    """Something needs float64 where arrays are made in float32."""


def require_float64() -> None:
    """Ask for float64: a function that `run_in_required_precision` runs is then run in it as a whole.

    Raises:
        Float64RequiredError: where float64 is not at hand.
    """
    if not jax.config.jax_enable_x64:
        raise Float64RequiredError(
            "this needs float64. Call it by fedjax_het._internal.float64.run_in_required_precision."
        )


def run_in_required_precision(function: Callable[[], PyTree]) -> PyTree:
    """function(), with float64 at hand if anything in it asks for that; what it returns is in float32 again.

    Args:
        function: traced a second time where it asks; it must do no more than compute what it returns.
    """
    try:
        return function()
    except Float64RequiredError:
        return in_double(lambda: jax.tree.map(_narrow, function()))()


def _narrow(x: Array) -> Array:
    x = x if hasattr(x, "dtype") else jnp.asarray(x)
    narrow = {"float64": jnp.float32, "int64": jnp.int32, "uint64": jnp.uint32}.get(str(x.dtype))
    return x.astype(narrow) if narrow else x


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

"""Float64 arithmetic inside programs in float32."""

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, Primitive, jaxpr_as_fun
from jax.interpreters import batching, mlir

from fedjax_het.types import Array, PyTree


def is_float64_enabled() -> bool:
    """Whether arrays can be float64: inside `run_in_double`, or with `jax_enable_x64`."""
    return jax.dtypes.canonicalize_dtype(np.float64) == np.float64


def run_in_double(function: Callable[[], PyTree]) -> PyTree:
    """Run a function with float64 enabled, and convert its results to float32; with `jax_enable_x64`, just run it."""
    if is_float64_enabled():
        return function()
    return in_double(lambda: jax.tree.map(_narrow, function()))()


def _narrow(x: Array) -> Array:
    x = x if hasattr(x, "dtype") else jnp.asarray(x)
    narrow = {"float64": jnp.float32, "int64": jnp.int32, "uint64": jnp.uint32}.get(str(x.dtype))
    return x.astype(narrow) if narrow else x


def in_double(function: Callable) -> Callable:
    """Make a function of arrays that can compute in float64, whatever `jax_enable_x64` is set to.

    A float32 Gram matrix loses every axis whose singular value is below 3e-4 of the largest; in float64 that limit is
    1e-8.

    `jax.enable_x64` is a context of Python, and Python handles a function of a program three times: when it is traced,
    when it is vmapped, and when it is lowered, long after the context of the trace has ended. Operations that JAX
    lowers by tracing Python code (argmin, cumulative sums) would then become float32 although they were traced as
    float64. Therefore the traced function is one primitive, `_DOUBLE`, which enters the context again each time; a
    wrapper made of public transformations cannot, because JAX calls only a primitive's own rules when it lowers. Arrays
    that the function closes over become arguments, so that a hyper-parameter can be batched too.
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
        """The results, with float64 enabled. args: the arrays that the function closes over, then its leaves."""
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

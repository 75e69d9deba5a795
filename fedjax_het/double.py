"""Float64 for the few numbers that need it, whatever the process is set to."""

from collections.abc import Callable

import jax
from jax.custom_batching import custom_vmap


def in_double(function: Callable) -> Callable:
    """Run a function of arrays with float64 at hand, whatever the process is set to.

    A float32 Gram matrix loses every axis whose singular value is under 3e-4 of the largest; in float64 that limit is
    1e-8. custom_vmap, because a plain vmap traces the function's loops anew outside the float64 context; what the
    function closes over becomes an argument of it, so that a hyper-parameter may be batched too.
    """

    def call(*args):
        with jax.enable_x64(True):
            closed, out = jax.make_jaxpr(function, return_shape=True)(*args)
        structure = jax.tree.structure(out)

        def evaluate(captured, *args):
            leaves = jax.core.eval_jaxpr(closed.jaxpr, captured, *jax.tree.leaves(args))
            return jax.tree.unflatten(structure, leaves)

        return _batched_in_double(evaluate)(closed.consts, *args)

    return call


def _batched_in_double(function: Callable) -> Callable:
    @custom_vmap
    def run(*args):
        with jax.enable_x64(True):
            return function(*args)

    @run.def_vmap
    def _(size, is_batched, *args):
        axes = jax.tree.map(lambda batched: 0 if batched else None, tuple(is_batched))
        with jax.enable_x64(True):
            out = jax.vmap(function, in_axes=axes, axis_size=size)(*args)
        return out, jax.tree.map(lambda _: True, out)

    return run

"""The compiled loop of an LSTM and of its gradient as JAX primitives, float32, on a CPU."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp

from fedjax_het._internal import kernels
from fedjax_het._internal.primitives import declare
from fedjax_het.types import Array

explain_missing_kernel = kernels.make_check(__file__, recurrence=("recurrence", "recurrence_gradient"))


def run_forward(received: Array, recurrent: Array) -> tuple[Array, ...]:
    """W x + b [batch, length, 4 unit], U [unit, 4 unit] -> [h_t, h_{t-1}, open gates (4 unit), c_t].

    The gates are sigmoid(i), sigmoid(f + 1), tanh(g) and sigmoid(o).
    """
    return tuple(_forward.bind(received, recurrent))


def run_backward(gradients: Array, gates: Array, cells: Array, recurrent: Array) -> Array:
    """The gradient for W x + b, given that for h_t [batch, length, unit]."""
    return _backward.bind(gradients, gates, cells, recurrent)


def _forward_shapes(received: Array, recurrent: Array) -> list[tuple[int, ...]]:
    states = (*received.shape[:-1], recurrent.shape[-2])
    return [states, states, received.shape, states]


def _call_forward(received: Array, recurrent: Array) -> Sequence[Array]:
    shapes = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in _forward_shapes(received, recurrent)]
    call = kernels.prepare_call("recurrence", shapes, input_output_aliases={0: 2})
    return call(received, recurrent)


def _call_backward(gradients: Array, gates: Array, cells: Array, recurrent: Array) -> Array:
    shape = jax.ShapeDtypeStruct(gates.shape, jnp.float32)
    call = kernels.prepare_call("recurrence_gradient", shape, input_output_aliases={1: 0})
    return call(gradients, gates, cells, recurrent)


_forward = declare("recurrence", _call_forward, _forward_shapes, (3, 2), is_shared=True, has_several=True)
_backward = declare(
    "recurrence_gradient",
    _call_backward,
    lambda gradients, gates, cells, recurrent: gates.shape,
    (3, 3, 3, 2),
    is_shared=True,
)

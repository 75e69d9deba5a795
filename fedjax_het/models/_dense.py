"""Dense layers: products and biases."""

from functools import partial

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax import lax
from jax.custom_derivatives import SymbolicZero

from fedjax_het._internal.target_platform import target_platform
from fedjax_het.types import Array, Key, Params

_NARROW = 32  # columns of a kernel


def add_bias(y: Array, bias: Array) -> Array:
    """y [..., feature] + bias [feature]; the gradient of the bias is summed over examples in float32."""
    exact = jnp.promote_types(y.dtype, jnp.float32)
    return (y.astype(exact) + bias.astype(exact)).astype(y.dtype)


def multiply(inputs: Array, kernel: Array) -> Array:
    """inputs [..., i] @ kernel [i, o]. On CPUs the gradient of narrow kernels is faster than XLA's."""
    is_narrow = target_platform() == "cpu" and kernel.shape[1] <= _NARROW
    return _multiply_narrow(inputs, kernel) if is_narrow else _contract_last(inputs, kernel, 0)


def _contract_last(inputs: Array, other: Array, axis: int) -> Array:
    return lax.dot_general(inputs, other, (((inputs.ndim - 1,), (axis,)), ((), ())))


@jax.custom_jvp
def _multiply_narrow(inputs: Array, kernel: Array) -> Array:
    return _contract_last(inputs, kernel, 0)


@partial(_multiply_narrow.defjvp, symbolic_zeros=True)
def _multiply_narrow_jvp(values: tuple[Array, Array], tangents: tuple) -> tuple[Array, Array]:
    """The kernel gradient is computed transposed, [o, i], because XLA packs the wider factor more slowly."""
    (inputs, kernel), (input_tangents, kernel_tangents) = values, tangents
    out, terms = _multiply_narrow(inputs, kernel), []
    if not isinstance(input_tangents, SymbolicZero):
        terms.append(_contract_last(input_tangents, kernel, 0))
    if not isinstance(kernel_tangents, SymbolicZero):
        # The barrier prevents XLA from reversing the product.
        terms.append(_contract_last(inputs, lax.optimization_barrier(kernel_tangents.T), 1))
    return out, sum(terms[1:], terms[0]) if terms else jnp.zeros_like(out)


class Dense(nn.Dense):
    """`flax.linen.Dense` with `add_bias`."""

    @nn.compact
    def __call__(self, inputs: Array) -> Array:
        kernel = self.param("kernel", self.kernel_init, (inputs.shape[-1], self.features), self.param_dtype)
        bias = self.param("bias", self.bias_init, (self.features,), self.param_dtype) if self.use_bias else None
        inputs, kernel, bias = nn.dtypes.promote_dtype(inputs, kernel, bias, dtype=self.dtype)
        y = multiply(inputs, kernel)
        return y if bias is None else add_bias(y, bias)


def init_dense(key: Key, num_inputs: int, num_outputs: int, dtype: jnp.dtype) -> Params:
    """The parameters of a dense layer: LeCun-normal kernel [input, output], zero bias [output]."""
    kernel = nn.initializers.lecun_normal()(key, (num_inputs, num_outputs), dtype)
    return {"kernel": kernel, "bias": jnp.zeros(num_outputs, dtype)}


def apply_dense(layer: Params, inputs: Array) -> Array:
    return add_bias(multiply(inputs, layer["kernel"]), layer["bias"])

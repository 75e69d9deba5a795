"""Parameters of layers, and dense layers: products and biases."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from flax import linen as nn

from fedjax_het.models._native import narrow
from fedjax_het.types import Array, Key, Params


def param(
    module: nn.Module, name: str, initializer: Callable[..., Array], shape: tuple[int, ...], *dtype: Any
) -> Array:
    """`module.param`, whose check of the shape of a known parameter traces the initializer, without this trace."""
    value: Any = module.get_variable("params", name)
    return value if getattr(value, "shape", None) == shape else module.param(name, initializer, shape, *dtype)


def add_bias(y: Array, bias: Array) -> Array:
    """y [..., feature] + bias [feature]; the gradient of the bias is summed over examples in float32."""
    exact = jnp.promote_types(y.dtype, jnp.float32)
    return (y.astype(exact) + bias.astype(exact)).astype(y.dtype)


def multiply(inputs: Array, kernel: Array) -> Array:
    """inputs [..., i] @ kernel [i, o]. On CPUs, kernels with few columns are multiplied by a compiled function."""
    is_native = inputs.dtype == kernel.dtype == jnp.float32 and narrow.is_faster(inputs, kernel)
    if not is_native or narrow.explain_missing_kernel():
        return inputs @ kernel
    y = narrow.multiply(inputs.reshape(-1, inputs.shape[-1]), kernel)
    return y.reshape(*inputs.shape[:-1], kernel.shape[1])


class Dense(nn.Dense):
    """`flax.linen.Dense` with `add_bias`."""

    @nn.compact
    def __call__(self, inputs: Array) -> Array:
        kernel = param(self, "kernel", self.kernel_init, (inputs.shape[-1], self.features), self.param_dtype)
        bias = param(self, "bias", self.bias_init, (self.features,), self.param_dtype) if self.use_bias else None
        inputs, kernel, bias = nn.dtypes.promote_dtype(inputs, kernel, bias, dtype=self.dtype)
        y = multiply(inputs, kernel)
        return y if bias is None else add_bias(y, bias)


def init_dense(key: Key, num_inputs: int, num_outputs: int, dtype: jnp.dtype) -> Params:
    """The parameters of a dense layer: LeCun-normal kernel [input, output], zero bias [output]."""
    kernel = nn.initializers.lecun_normal()(key, (num_inputs, num_outputs), dtype)
    return {"kernel": kernel, "bias": jnp.zeros(num_outputs, dtype)}


def apply_dense(layer: Params, inputs: Array) -> Array:
    return add_bias(multiply(inputs, layer["kernel"]), layer["bias"])

"""Mixed precision: products in bfloat16 or float16, parameters and sums in float32."""

from collections.abc import Callable
from typing import Literal

import jax
import jax.numpy as jnp

from fedjax_het.types import Array, Context, Model, Named, Params, Variables
from fedjax_het.validation import validate_arguments

Precision = Literal["float32", "bfloat16", "float16"]
DTYPES: dict[Precision, type] = {"float32": jnp.float32, "bfloat16": jnp.bfloat16, "float16": jnp.float16}


@validate_arguments
def computed_in(dtype: Precision) -> Callable[[Model], Model]:
    """Compute forward and backward passes in `dtype`; weights, statistics, losses and updates stay in float32.

    Parameters and inputs are cast on entry to the network, and features and logits are cast back on exit, so
    objectives, optimizers and aggregators see float32. Inside, products are in `dtype` and sums in float32 (sums of
    convolutions, norms, and gradients over examples), because bfloat16 sums stop growing after a few hundred terms of
    equal size. "float32" returns the model unchanged.

    Raises:
        InputError: The dtype is unknown.
    """
    chosen = DTYPES[dtype]

    def adapt(model: Model) -> Model:
        def encode(variables: Variables, inputs: Array, context: Context) -> tuple[tuple[Array, Named], Variables]:
            cast = {**variables, "params": _cast(variables["params"], chosen)}
            (features, extras), state = model.encode(cast, _cast(inputs, chosen), context)
            return (_cast(features, jnp.float32), _cast(extras, jnp.float32)), state

        def classify(params: Params, features: Array) -> Array:
            return model.classify(_cast(params, chosen), features.astype(chosen)).astype(jnp.float32)

        narrowed = model.narrowed and (lambda width: adapt(model.narrowed(width)))
        return model._replace(encode=encode, classify=classify, narrowed=narrowed)

    return (lambda model: model) if dtype == "float32" else adapt


def _cast(tree, dtype):
    return jax.tree.map(lambda x: x.astype(dtype) if jnp.issubdtype(x.dtype, jnp.floating) else x, tree)

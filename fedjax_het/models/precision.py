"""Mixed precision: a model computed in another dtype than its weights are kept in."""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from fedjax_het.errors import InputError, nearest
from fedjax_het.types import Array, Context, Model, Named, Params, Variables

DTYPES = {"float32": jnp.float32, "bfloat16": jnp.bfloat16, "float16": jnp.float16}


def computed_in(dtype: str) -> Callable[[Model], Model]:
    """Compute forward and backward passes in `dtype`; weights, statistics, losses and updates stay in float32.

    Parameters and inputs are cast where they enter the network, features and logits cast back where they leave it, so
    objectives, optimizers and aggregators see float32. "float32" is the model itself.
    Raises InputError for an unknown dtype.
    """
    if dtype not in DTYPES:
        raise InputError(f"dtype: unknown '{dtype}'. {nearest(dtype, DTYPES)}")
    chosen = DTYPES[dtype]

    def adapt(model: Model) -> Model:
        def encode(variables: Variables, inputs: Array, context: Context) -> tuple[tuple[Array, Named], Variables]:
            cast = {**variables, "params": _cast(variables["params"], chosen)}
            (features, extras), state = model.encode(cast, inputs.astype(chosen), context)
            return (_cast(features, jnp.float32), _cast(extras, jnp.float32)), state

        def classify(params: Params, features: Array) -> Array:
            return model.classify(_cast(params, chosen), features.astype(chosen)).astype(jnp.float32)

        return Model(model.init, encode, classify, model.layers)

    return (lambda model: model) if dtype == "float32" else adapt


def _cast(tree, dtype):
    return jax.tree.map(lambda x: x.astype(dtype) if jnp.issubdtype(x.dtype, jnp.floating) else x, tree)
